"""A bundle to install from: feduca's own wheel, and with `full` everything that it needs, so that no package index is asked.

bundle/
    feduca-VERSION-py3-none-any.whl   packed from the feduca that runs here
    *.whl                             with `full`: all it needs, as it is installed here, fetched with pip
    requirements.txt                  with `full`: exact versions with checksums, and pip takes nothing else
    constraints.txt                   without: versions for pip to fetch from the silo's own index or mirror
    SHA256SUMS install.sh Containerfile

A full bundle fits this machine's kind (system, processor, Python version), as wheels do.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import feduca
from feduca._version import __version__
from feduca.errors import ConfigError, RunError

KINDS = ("wheel", "full")
EXTRA = "flower"
EPOCH = (1980, 1, 1, 0, 0, 0)  # of every file: the same source gives the same bytes


def write(folder: Path, kind: str) -> Path:
    """FOLDER/bundle, and the same files (hard links where that works) in the server's folder and each silo's."""
    check(kind)
    place = folder / "bundle"
    place.mkdir()
    mine = wheel(place)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    if kind == "full":
        _download(place, [f"{name}=={version}" for name, version in closure(EXTRA)])
        lines = [f"{_project(path.name)} --hash=sha256:{_sum(path)}" for path in sorted(place.glob("*.whl"))]
        what = "--no-index --require-hashes --no-deps --find-links . -r requirements.txt"
        (place / "requirements.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    else:  # a build of this machine's own (+cpu) has the public version's number
        lines = [f"{name}=={version.partition('+')[0]}" for name, version in closure(EXTRA)]
        what = f'-c constraints.txt "./{mine.name}[{EXTRA}]"'
        (place / "constraints.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (place / "install.sh").write_text(_INSTALL.format(what=what, python=python), encoding="utf-8")
    (place / "install.sh").chmod(0o755)
    network = "--network=none " if kind == "full" else ""
    (place / "Containerfile").write_text(_CONTAINER.format(python=python, network=network), encoding="utf-8")
    (place / ".dockerignore").write_text("", encoding="utf-8")
    sums = "".join(f"{_sum(path)}  {path.name}\n" for path in sorted(place.iterdir()))
    (place / "SHA256SUMS").write_text(sums, encoding="utf-8")
    for silo in (folder / "server", *sorted((folder / "silos").iterdir())):
        beside(folder, silo)
    return place


def beside(folder: Path, place: Path) -> None:
    """The deployment's bundle, where there is one, in the server's or a silo's folder."""
    if (folder / "bundle").is_dir():
        shutil.copytree(folder / "bundle", place / "bundle", copy_function=_linked)


def check(kind: str) -> None:
    if kind not in KINDS:
        raise ConfigError(f"--bundle is {kind!r}; it is wheel (feduca alone) or full (all that it needs, too)")


def wheel(place: Path) -> Path:
    """feduca's own wheel, packed from what is imported here: no build tool and no network, the same bytes each time."""
    info = _installed()
    name = f"feduca-{__version__}"
    root = Path(feduca.__file__).parent
    files = {
        f"feduca/{path.relative_to(root).as_posix()}": path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".pyc", ".nbi", ".nbc")
    }
    for file in ("METADATA", "entry_points.txt"):
        if (text := info.read_text(file)) is not None:
            files[f"{name}.dist-info/{file}"] = text.encode()
    files[f"{name}.dist-info/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: feduca\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    rows = io.StringIO()
    record = csv.writer(rows, lineterminator="\n")
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record.writerow((path, f"sha256={digest}", len(content)))
    record.writerow((f"{name}.dist-info/RECORD", "", ""))
    files[f"{name}.dist-info/RECORD"] = rows.getvalue().encode()
    made = place / f"{name}-py3-none-any.whl"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, EPOCH)
            entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return made


def _installed() -> Distribution:
    try:
        found = distribution("feduca")
    except PackageNotFoundError:
        raise RunError("feduca is not installed here but only imported; pip install it first") from None
    if found.version != __version__:
        raise RunError(
            f"feduca {__version__} runs, {found.version} is installed here; install it again, then bundle it"
        )
    return found


def closure(extra: str) -> list[tuple[str, str]]:
    """Names and versions of all that feduca[extra] needs and that is installed here, but for feduca itself."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    seen: dict[str, str] = {}
    asked: set[tuple[str, str]] = set()
    todo = [("feduca", extra), ("feduca", "")]
    while todo:
        name, wanted = todo.pop()
        if (name, wanted) in asked:
            continue
        asked.add((name, wanted))
        try:
            found = distribution(name)
        except PackageNotFoundError:
            raise RunError(f'{name} is not installed here; pip install "feduca[{extra}]", then bundle it') from None
        seen[name] = found.version.partition("+")[
            0
        ]  # a build of this machine's own (+cpu) has the public version's number
        for text in found.requires or ():
            need = Requirement(text)
            if need.marker is None or need.marker.evaluate({"extra": wanted}):
                todo += [(canonicalize_name(need.name), one) for one in ("", *need.extras)]
    del seen["feduca"]
    return sorted(seen.items())


def _download(place: Path, pins: list[str]) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*command, "--only-binary", ":all:", "--dest", str(place), *pins],
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise RunError(f"pip cannot fetch the wheels ({last}); make the full bundle where pip reaches an index")


def _project(name: str) -> str:
    from packaging.utils import parse_wheel_filename

    project, version, _, _ = parse_wheel_filename(name)
    return f"{project}=={version}"


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


_INSTALL = """#!/bin/sh
# install.sh [FOLDER]: feduca into a virtual environment, by default venv/ beside the bundle, where start.sh finds it.
set -eu
bundle=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
venv=${{1:-"$bundle/../venv"}}
case $venv in /*) ;; *) venv=$PWD/$venv ;; esac
python=${{PYTHON:-$(command -v python{python} || command -v python3)}}
cd "$bundle"
sha256sum --check --quiet --strict SHA256SUMS
for file in * .[!.]* ..?*; do
  [ -e "$file" ] || [ -h "$file" ] || continue
  [ "$file" = SHA256SUMS ] || cut -c 67- SHA256SUMS | grep -Fqx -e "$file" || {{
    echo "install.sh: $bundle/$file is not listed in SHA256SUMS; remove it, and ask who sent the bundle" >&2
    exit 1
  }}
done
# -I: nothing that lies in this folder is imported
"$python" -I -m venv "$venv"
"$venv/bin/python" -I -m pip install --quiet --disable-pip-version-check {what}
"$venv/bin/python" -I -m pip check
[ $# -gt 0 ] || "$venv/bin/python" -I -m feduca.cli.warm  # elsewhere, others run it, who compile into their own folders
echo "installed: $("$venv/bin/feduca" --version) in $venv"
"""

_CONTAINER = """# An image of what bundle/install.sh installs. It runs without privileges, and fetches nothing.
FROM docker.io/library/python:{python}-slim
COPY . /bundle
RUN {network}sh /bundle/install.sh /opt/feduca && useradd --uid 10001 --user-group --no-create-home feduca
USER 10001:10001
WORKDIR /var/lib/feduca
ENTRYPOINT ["/opt/feduca/bin/feduca"]
"""
