"""What an IT department needs beside a deployment's folders: units, a compose file or manifests, a bundle to install from.

Everything is written into the folder it belongs to (`server/`, `silos/NAME/`), so that copying the folder is enough. Keys and
certificates stay the files they are; nothing written here holds one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from feduca.errors import ConfigError
from feduca.flower import folder as folders
from feduca.flower.folder import ServerFolder, SiloFolder
from feduca.flower.install import bundle, compose, kubernetes, systemd

Files = dict[str, str]
TARGETS: dict[str, tuple[Callable[[ServerFolder], Files], Callable[[SiloFolder], Files]]] = {
    "systemd": (systemd.server, systemd.silo),
    "compose": (compose.server, compose.silo),
    "kubernetes": (kubernetes.server, kubernetes.silo),
}
CONTAINERS = ("compose", "kubernetes")


def check(target: str | None, kind: str | None) -> None:
    """Before anything is written."""
    if target is not None and target not in TARGETS:
        raise ConfigError(f"--for is {target!r}; it is one of {', '.join(TARGETS)}")
    if kind is not None:
        bundle.check(kind)


def write(folder: Path, target: str | None, kind: str | None) -> None:
    """Files for `target` in the server's folder and in every silo's, and a bundle: containers are made of one."""
    check(target, kind)
    if target is not None:
        of_server, of_silo = TARGETS[target]
        server = folders.read_server(folder)
        _files(server.path, of_server(server))
        for path in sorted((folder / "silos").iterdir()):
            _files(path, of_silo(folders.read_silo(path)))
    if kind is not None or target in CONTAINERS:
        bundle.write(folder, kind or "wheel")


def write_silo(folder: Path, path: Path) -> None:
    """For one more silo, what the server's folder has."""
    server = folders.read_server(folder)
    for of_server, of_silo in TARGETS.values():
        if all((server.path / name).is_file() for name in of_server(server)):
            _files(path, of_silo(folders.read_silo(path)))
    bundle.beside(folder, path)


def _files(place: Path, found: Files) -> None:
    for name, text in found.items():
        (place / name).parent.mkdir(mode=0o700, exist_ok=True)
        (place / name).write_text(text, encoding="utf-8")
