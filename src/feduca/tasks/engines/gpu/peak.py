"""The most memory a run took on its GPU. Runs side by side share it, so only one that has the device to itself can say."""

from __future__ import annotations

import gc


def reset(device: str) -> None:
    """Forget what was used so far, and let go of what earlier runs left in cycles: it is no part of this one's."""
    if device == "cuda":
        import torch

        if torch.cuda.is_available():  # else the engine says so in words
            gc.collect()
            torch.cuda.reset_peak_memory_stats()


def megabytes(device: str) -> float | None:
    """The largest amount of tensors held at once since `reset`; None on CPU, where usage is not tracked."""
    if device != "cuda":
        return None
    import torch

    return torch.cuda.max_memory_allocated() / 2**20
