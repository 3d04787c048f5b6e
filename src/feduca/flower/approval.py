"""Which app a silo runs: the one whose fingerprint its operator approved, kept as `app` in silo.toml.

SILO/approved.fab          the app as it was approved, to compare a new one with
SILO/state/proposed.fab    the last one that the server sent and that was refused

Of the bundle itself nothing is unpacked to disk or run before it is approved.
"""

from __future__ import annotations

import difflib
import hashlib
import io
import logging
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

from feduca.errors import InputError
from feduca.flower.folder import read_silo
from feduca.runs.directory import write_whole

log = logging.getLogger("feduca")

APPROVED, PROPOSED = "approved.fab", "state/proposed.fab"  # a service may write in state/ alone
LARGEST = 32 * 2**20  # bytes of text that are shown; Flower takes bundles of at most 10 MB


def bundle(app: Path) -> bytes:
    """The app in folder `app` as Flower sends it to silos; the same files always give the same bytes."""
    from flwr.cli.build import build_fab_from_disk

    if not (app / "pyproject.toml").is_file():
        raise InputError(
            f"{app} is no Flower app: it has no pyproject.toml; give the app of the server's folder (server/app), or a .fab file"
        )
    with warnings.catch_warnings():  # Flower's own, about its use of pathspec
        warnings.simplefilter("ignore", DeprecationWarning)
        return build_fab_from_disk(app)


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path} ({error.strerror}); give an app's folder or a .fab file") from None


def fingerprint(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def judge(silo: Path, content: bytes) -> bool:
    """Whether this bundle is the approved one; one that is not is put aside for its operator to look at."""
    mine, seen = read_silo(silo), fingerprint(content)
    if seen == mine.app:
        return True
    from feduca.flower.store import SiloStore

    why = f"app {seen[:12]} is not the approved one; look at it with `feduca silo approve {mine.path}`"
    if not (silo / PROPOSED).is_file() or fingerprint((silo / PROPOSED).read_bytes()) != seen:
        _keep(silo / PROPOSED, content)
    SiloStore(mine.state).log(silo=mine.name, decision="refused", reason=why)
    log.error("refused: %s", why)
    return False


def approve(silo: Path, content: bytes) -> str:
    """From now on this bundle is the one that runs; returns its fingerprint."""
    import tomlkit

    seen = fingerprint(content)
    path = silo / "silo.toml"
    words = tomlkit.parse(path.read_text(encoding="utf-8"))
    if "app" in words:
        words["app"] = seen
    else:  # before the tables
        words = tomlkit.parse(f'app = "{seen}"\n' + path.read_text(encoding="utf-8"))
    _keep(silo / APPROVED, content)
    write_whole(path, tomlkit.dumps(words))
    if (silo / PROPOSED).is_file() and fingerprint((silo / PROPOSED).read_bytes()) == seen:
        (silo / PROPOSED).unlink()
    return seen


def proposed(silo: Path) -> bytes:
    """The bundle that waits for approval."""
    try:
        return (silo / PROPOSED).read_bytes()
    except OSError:
        raise InputError(
            f"no app waits for approval in {silo}; the server sends one when a run begins, or give it with --app"
        ) from None


def difference(silo: Path, content: bytes) -> str:
    """What approving `content` would change, as a unified diff; every character that does not print is spelled out.

    Lines end where Python's do: what only looks like a line's end, and may hide code in a comment, is spelled out as well.
    """
    old = texts((silo / APPROVED).read_bytes()) if (silo / APPROVED).is_file() else {}
    return compared(old, texts(content))


def compared(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """Files before and after, as `difference` shows them."""
    lines: list[str] = []
    for name in sorted({*old, *new}):
        before, after = (of[name].split("\n") if name in of else [] for of in (old, new))
        lines += difflib.unified_diff(before, after, f"approved/{name}", f"proposed/{name}", lineterm="")
    return "\n".join(map(_printable, lines))


def texts(content: bytes) -> dict[str, str]:
    """The files of a bundle."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            if sum(info.file_size for info in file.infolist()) > LARGEST:
                raise InputError(f"the app unpacks to more than {LARGEST >> 20} MB; ask who sent it for a smaller one")
            return {
                info.filename: file.read(info).decode("utf-8", "backslashreplace")
                for info in file.infolist()
                if not info.is_dir()
            }
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise InputError(f"this is no app bundle ({error}); ask who sent it") from None


def _printable(line: str) -> str:
    """A terminal obeys control characters, and a reader marks that turn text around: neither is left in."""
    return "".join(c if c.isprintable() or c == "\t" else ascii(c)[1:-1] for c in line)


def _keep(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_bytes(content)
    part.chmod(0o600)
    part.replace(path)
