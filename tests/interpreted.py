"""GPU kernels in tests: on a GPU where there is one, else in Triton's interpreter. Import before feduca's kernels."""

import inspect
import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
pytest.importorskip("triton", reason="the kernels are Triton's")
torch.backends.cudnn.allow_tf32 = False  # what kernels are compared with is to be exact
if DEVICE == "cpu":  # Triton 3.6's interpreter turns arrays of one element into integers, which NumPy 2.5 refuses
    from triton.runtime import interpreter

    source = inspect.getsource(interpreter._patch_lang_tensor)
    exec(source.replace("(self.handle.data)", "(self.handle.data.item())"), interpreter.__dict__)


def errors(layout, got, exact, start):
    """How far a training is from the exact one, over how far that moved: one number per entry of the model."""
    wrong, moved = (layout.unpack(t).values() for t in (got - exact, exact - start))
    return torch.stack([a.norm() / b.norm() for a, b in zip(wrong, moved)])
