"""Fashion-MNIST, CIFAR-10 and CIFAR-100 from their official files."""

from __future__ import annotations

import gzip
import io
import pickle
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from feduca.errors import DataError
from feduca.tasks.data.base import Dataset, folder, read, verify

# md5 of the unpacked idx files: packers differ, what they packed does not.
FMNIST = {
    "train-images-idx3-ubyte": (47_040_016, "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
    "train-labels-idx1-ubyte": (60_008, "9018921c3c673c538a1fc5bad174d6f9"),
    "t10k-images-idx3-ubyte": (7_840_016, "8181f5470baa50b63fa0f6fddb340f0a"),
    "t10k-labels-idx1-ubyte": (10_008, "15d484375f8d13e6eb1aabb0c3f46965"),
}
FMNIST_PACKAGED = Path("/usr/share/datasets/fashion-mnist")  # Debian's package dataset-fashion-mnist
FMNIST_HOME = "https://github.com/zalandoresearch/fashion-mnist"
FMNIST_LABELS = [
    "T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
]  # fmt: skip

CIFAR10_BINARY = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
CIFAR10_PYTHON = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
CIFAR10_LABELS = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
CIFAR100_BINARY = {
    "train.bin": (153_700_000, "6172c7755cfe09b2fe270c85cebc1b15"),
    "test.bin": (30_740_000, "4499cfba6c016c1be1438163640a0898"),
}
CIFAR100_PYTHON = {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"}
CIFAR_HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"
PIXELS = 3 * 32 * 32


def fmnist(data_dir: str | None = None) -> Dataset:
    """Fashion-MNIST: 60 000 and 10 000 grey images, 28 x 28."""
    tried = fmnist_places(data_dir)
    home = next((place for place in tried if _idx_path(place, "train-images-idx3-ubyte")), None)
    if home is None and data_dir:
        raise DataError(
            f"no Fashion-MNIST in task.data_dir {data_dir}{'' if Path(data_dir).is_dir() else ', which is no folder'}: "
            f"put the four idx files of {FMNIST_HOME} into {tried[0]}, or leave data_dir unset to have Debian's package "
            "dataset-fashion-mnist"
        )
    if home is None:
        raise DataError(
            f"no Fashion-MNIST in {tried[0]} nor {FMNIST_PACKAGED}: install Debian's package dataset-fashion-mnist, "
            f"or put the four idx files of {FMNIST_HOME} into the first"
        )
    x_train, y_train, x_test, y_test = (_idx(home, name, *expected) for name, expected in FMNIST.items())
    return Dataset(
        "fmnist",
        x_train[..., None],
        y_train.astype(np.int64),
        x_test[..., None],
        y_test.astype(np.int64),
        10,
        tuple(FMNIST_LABELS),
        np.array([0.2860]),
        np.array([0.3530]),
    )


def fmnist_places(data_dir: str | None) -> list[Path]:
    """Where Fashion-MNIST may lie; a folder that the user names is taken at its word, nothing else stands in for it."""
    home = folder(data_dir)
    return [home / "fashion-mnist", home, *([] if data_dir else [FMNIST_PACKAGED])]


def _idx_path(place: Path, name: str) -> Path | None:
    return next((path for path in (place / f"{name}.gz", place / name) if path.is_file()), None)


def _idx(home: Path, name: str, size: int, md5: str) -> np.ndarray:
    """One idx file, packed or not: two zero bytes, the type (8: bytes), the number of axes, their lengths, the data."""
    path = _idx_path(home, name)
    if path is None:
        raise DataError(f"{home / name}.gz is missing: Fashion-MNIST has four files; fetch it again")
    payload = path.read_bytes()
    if path.suffix == ".gz":
        try:
            payload = gzip.decompress(payload)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path} does not unpack ({error}): it is truncated or damaged; fetch it again") from error
    verify(path, payload, size, md5)
    axes = payload[3]
    shape = np.frombuffer(payload, ">i4", axes, offset=4)
    return np.frombuffer(payload, np.uint8, offset=4 + 4 * axes).reshape(shape)


def cifar10(data_dir: str | None = None) -> Dataset:
    """CIFAR-10: 50 000 and 10 000 colour images, 32 x 32, of 10 classes."""
    home = folder(data_dir)
    binary, python = home / "cifar-10-batches-bin", home / "cifar-10-batches-py"
    if binary.is_dir():
        rows = [_records(read(_there(binary / n), 30_730_000, md5), 1) for n, md5 in CIFAR10_BINARY.items()]
    elif python.is_dir():
        rows = [_pickled(_there(python / name), md5, "labels") for name, md5 in CIFAR10_PYTHON.items()]
    else:
        raise _missing("CIFAR-10", home, "cifar-10-binary.tar.gz", binary)
    return _cifar("cifar10", rows[:5], rows[5:], CIFAR10_LABELS, (0.491, 0.482, 0.447), (0.247, 0.243, 0.262))


def cifar100(data_dir: str | None = None) -> Dataset:
    """CIFAR-100: 50 000 and 10 000 colour images, 32 x 32, of 100 (fine) classes."""
    home = folder(data_dir)
    binary, python = home / "cifar-100-binary", home / "cifar-100-python"
    if binary.is_dir():
        rows = [_records(read(_there(binary / n), *expected), 2) for n, expected in CIFAR100_BINARY.items()]
    elif python.is_dir():
        rows = [_pickled(_there(python / name), md5, "fine_labels") for name, md5 in CIFAR100_PYTHON.items()]
    else:
        raise _missing("CIFAR-100", home, "cifar-100-binary.tar.gz", binary)
    labels = [str(c) for c in range(100)]
    return _cifar("cifar100", rows[:1], rows[1:], labels, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))


def _missing(name: str, home: Path, archive: str, wanted: Path) -> DataError:
    if (home / archive).is_file():
        return DataError(f"{name} is still packed in {home / archive}: unpack it there (tar xzf), which makes {wanted}")
    return DataError(f"{name} is not in {wanted}: fetch {archive} from {CIFAR_HOME} and unpack it in {home}")


def _there(path: Path) -> Path:
    if not path.is_file():
        raise DataError(f"{path} is missing: fetch the archive from {CIFAR_HOME} again")
    return path


def _records(payload: bytes, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of CIFAR's binary format: label byte(s) (the last one is the fine label), then three planes."""
    rows = np.frombuffer(payload, np.uint8).reshape(-1, label_bytes + PIXELS)
    return rows[:, label_bytes:], rows[:, label_bytes - 1]


class _ArraysOnly(pickle.Unpickler):
    """Unpickles plain containers and numpy arrays, and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np.empty(0).__reduce__()[0]  # numpy's own, wherever this version keeps it
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"{module}.{name} does not belong in a data set")


def _pickled(path: Path, md5: str, label: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of CIFAR's Python format; the checksum is verified before anything is unpickled."""
    payload = read(path, path.stat().st_size, md5)
    return _unpickle(path, payload, label)


def _unpickle(path: Path, payload: bytes, label: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        content = _ArraysOnly(io.BytesIO(payload), encoding="bytes").load()
        return np.asarray(content[b"data"], np.uint8), np.asarray(content[label.encode()], np.int64)
    except (pickle.UnpicklingError, KeyError, EOFError, ValueError) as error:
        raise DataError(f"{path} is not a CIFAR batch ({error}): use the binary version of {CIFAR_HOME}") from error


def _cifar(
    name: str,
    train: list[tuple[np.ndarray, np.ndarray]],
    test: list[tuple[np.ndarray, np.ndarray]],
    labels: list[str],
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Dataset:
    def join(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
        planes = np.concatenate([x for x, _ in parts]).reshape(-1, 3, 32, 32)
        return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), np.concatenate([y for _, y in parts]).astype(
            np.int64
        )

    return Dataset(name, *join(train), *join(test), len(labels), tuple(labels), np.array(mean), np.array(std))
