"""The silos that belong: one public key per file of `keys/`. Who is not among them is nobody, whatever is registered."""

from __future__ import annotations

import logging
from pathlib import Path

log = logging.getLogger("feduca")


class Keys:
    """`keys/NAME.pub` as {public key as Flower sends it (PEM): NAME}. The folder is looked at anew with every question."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: tuple[tuple[str, int, int], ...] = ()
        self._names: dict[bytes, str] = {}

    def names(self) -> dict[bytes, str]:
        seen = tuple(
            (path.name, stat.st_mtime_ns, stat.st_size)
            for path in sorted(self.folder.glob("*.pub"))
            for stat in [path.stat()]
        )
        if seen != self._seen:
            found = {}
            for name, _, _ in seen:
                try:
                    found[_pem(self.folder / name)] = Path(name).stem
                except (OSError, ValueError, TypeError) as error:  # half a file: the others still count
                    log.warning("%s is not a silo's public key (%s); copy it again", self.folder / name, error)
            self._names, self._seen = found, seen
        return self._names


def _pem(path: Path) -> bytes:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    try:
        return public_key_to_bytes(load_ssh_public_key(path.read_bytes()))  # type: ignore[arg-type]
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from None
