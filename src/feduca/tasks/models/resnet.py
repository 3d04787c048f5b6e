"""ResNet-18 with GroupNorm (two groups) for BatchNorm, the stem for large images kept, and its ImageNet weights.

Names of the tensors are torchvision's, so that its published state dict fits: convolutions are taken as they are, the
scale and shift of each BatchNorm become the GroupNorm's, running statistics and the 1000-class layer are left out.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from feduca.errors import DataError
from feduca.tasks.models import networks
from feduca.tasks.models.convolution import Windows, convolve
from feduca.tasks.models.networks import Dense, Params, StackedModel, dense, kernels_at

NORM_GROUPS = 2
EPSILON = 1e-5
STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # width and stride of the four stages, two blocks each
PATIENCE = 10.0  # seconds without an answer after which there is no network
FILES = ("resnet18-f37072fd.pth", "resnet18-5c106cde.pth")  # torchvision's, new and old


class Block(nn.Module):
    """Two 3 x 3 convolutions and a shortcut."""

    def __init__(self, channels: int, width: int, stride: int):
        super().__init__()
        self.stride = stride
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.GroupNorm(NORM_GROUPS, width, EPSILON)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.GroupNorm(NORM_GROUPS, width, EPSILON)
        self.downsample = None
        if stride != 1 or channels != width:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride, bias=False), nn.GroupNorm(NORM_GROUPS, width, EPSILON)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet18(StackedModel):
    """ResNet-18 with GroupNorm."""

    first = "conv1"

    def __init__(self, outputs: int, channels: int = 3, widths: Sequence[tuple[int, int]] = STAGES):
        super().__init__()
        width = widths[0][0]
        self.conv1 = nn.Conv2d(channels, width, 7, 2, 3, bias=False)
        self.bn1 = nn.GroupNorm(NORM_GROUPS, width, EPSILON)
        for i, (wide, stride) in enumerate(widths, start=1):
            setattr(self, f"layer{i}", nn.Sequential(Block(width, wide, stride), Block(wide, wide, 1)))
            width = wide
        self.stages = len(widths)
        self.fc = Dense(width, outputs)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for i in range(1, self.stages + 1):
            x = self.get_submodule(f"layer{i}")(x)
        return self.fc(x.mean((2, 3)))

    def reached(self, shape: tuple[int, ...]) -> dict[str, tuple[slice, slice]]:
        found: dict[str, tuple[slice, slice]] = {}
        if not self.runs_as(ResNet18):
            return found  # a subclass's own passes may need them whole

        def conv(name: str, size: tuple[int, int], kernel: int, stride: int, padding: int) -> tuple[int, int]:
            at = Windows.of((*size, 1), (kernel, kernel), stride, padding)
            if at.taps != (kernel, kernel):
                found[f"{name}.weight"] = at.live
            return at.count

        rows, columns = conv("conv1", (shape[1], shape[2]), 7, 2, 3)
        size = ((rows - 1) // 2 + 1, (columns - 1) // 2 + 1)  # after the pooling
        for name, block in self.blocks():
            size = conv(f"{name}.conv1", size, 3, block.stride, 1)
            conv(f"{name}.conv2", size, 3, 1, 1)
        return found

    def blocks(self) -> Iterator[tuple[str, Block]]:
        """The blocks of all stages in order, by name."""
        for i in range(1, self.stages + 1):
            for j, block in enumerate(self.get_submodule(f"layer{i}").children()):
                assert isinstance(block, Block)
                yield f"layer{i}.{j}", block

    def stem(self, params: Params, x: Tensor) -> Tensor:
        return _conv(params, "conv1", x.movedim(2, 4), 7, 2, 3)

    def rest(self, params: Params, h: Tensor) -> Tensor:
        h = _norm(params, "bn1", h, relu=True)
        h = F.max_pool2d(h.flatten(0, 1).movedim(3, 1), 3, 2, 1).movedim(1, 3).unflatten(0, h.shape[:2])
        for name, block in self.blocks():
            out = _norm(params, f"{name}.bn1", _conv(params, f"{name}.conv1", h, 3, block.stride, 1), relu=True)
            if block.downsample is not None:
                h = _norm(params, f"{name}.downsample.1", _conv(params, f"{name}.downsample.0", h, 1, block.stride, 0))
            h = _norm(params, f"{name}.bn2", _conv(params, f"{name}.conv2", out, 3, 1, 1), other=h, relu=True)
        return dense(params, "fc", h.mean((2, 3)))


def _conv(params: Params, name: str, x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """K convolutions of `x[K, B, H, W, C]`; on a CPU one after the other, on a GPU as batched products."""
    weight = params[f"{name}.weight"]
    if networks.on_gpu(x):
        return convolve(x, weight, stride, padding, kernel)
    planes = x.movedim(4, 2)
    each = [F.conv2d(planes[k], weight[k], None, stride, padding) for k in range(len(x))]
    return torch.stack(each).movedim(2, 4)


def _norm(params: Params, name: str, x: Tensor, other: Tensor | None = None, relu: bool = False) -> Tensor:
    """K GroupNorms of `x[K, B, H, W, C]`, then `other` is added, then comes the ReLU, where they are asked for."""
    scale, shift = (params[f"{name}.{part}"] for part in ("weight", "bias"))
    if (fused := kernels_at(x, "norm_kernels")) and fused.fits(x, NORM_GROUPS):
        return fused.norm(x, scale, shift, other, relu=relu, groups=NORM_GROUPS, epsilon=EPSILON)
    grouped = x.unflatten(4, (NORM_GROUPS, -1)).float()
    variance, mean = torch.var_mean(grouped, dim=(2, 3, 5), correction=0, keepdim=True)
    normal = ((grouped - mean) * torch.rsqrt(variance + EPSILON)).flatten(4)
    out = torch.addcmul(shift[:, None, None, None], normal, scale[:, None, None, None]).to(x.dtype)
    out = out if other is None else out + other
    return F.relu(out) if relu else out


def published(data_dir: Path) -> tuple[dict[str, Tensor], str] | None:
    """torchvision's ImageNet state dict: its file in the data directory, else torchvision's; None without either."""
    for name in FILES:
        if (path := data_dir / name).is_file():
            return _state(path), f"ImageNet ({name})"
    state = None if _unreachable else _fetched()
    return None if state is None else (state, "ImageNet (torchvision)")


def chosen(path: Path) -> tuple[dict[str, Tensor], str]:
    """A state dict of the user's: a file of PyTorch's, or a safetensors file as `feduca export` writes them."""
    if not path.is_file():
        raise DataError(f"task.weights: there is no file {path}; give one, or leave task.weights out")
    state = _tensors(path) if path.suffix == ".safetensors" else _state(path)
    return state, f"{path.name} ({hashlib.sha256(path.read_bytes()).hexdigest()[:12]})"


def _tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file as load

    try:
        return load(path)
    except SafetensorError as error:
        raise DataError(f"{path} is not a safetensors file ({error}): export the model again") from error


def _state(path: Path) -> dict[str, Tensor]:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged file
        raise DataError(f"{path} is not a state dict ({str(error).splitlines()[0][:100]}): fetch it again") from error


_unreachable: list[bool] = []  # that a download has failed: it is tried once, not once for every run of a study


def _fetched() -> dict[str, Tensor] | None:
    """torchvision's own copy, which it may have to download."""
    try:
        from torchvision.models import ResNet18_Weights  # type: ignore[import-not-found]
    except (ImportError, RuntimeError):  # the second: one that was built for another PyTorch
        return None
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(PATIENCE)  # torchvision takes none; a network that swallows packets would take minutes
    try:
        return ResNet18_Weights.IMAGENET1K_V1.get_state_dict(progress=False)
    except OSError:
        _unreachable.append(True)
        return None
    finally:
        socket.setdefaulttimeout(before)


def take(model: ResNet18, state: Mapping[str, Tensor], source: str) -> None:
    """Copy what fits of a published state dict into `model`; all its convolutions and norms must be there."""
    own = model.state_dict()
    wanted = [name for name in own if not name.startswith("fc.")]
    for name in wanted:
        if name not in state or state[name].shape != own[name].shape:
            seen = tuple(state[name].shape) if name in state else "missing"
            raise DataError(
                f"{source}: {name} is {seen}, not {tuple(own[name].shape)}: use torchvision's resnet18 file, or one of this model"
            )
    model.load_state_dict({name: state[name] for name in wanted}, strict=False)
