"""`feduca deploy init`: everything a federation needs, in one folder, ready to be copied to its machines.

DIR/README.md                   who gets what
DIR/ca/                         the certificate authority's key; keep it off line
DIR/server/                     goes to the machine everybody can reach
    app/                        the Flower app: recipe.toml, and where the data are
    server.toml                 address, timeouts, how many silos
    server.crt server.key ca.crt    TLS
    keys/NAME.pub               the silos' public keys, to be registered
DIR/silos/NAME/                 goes to that silo's machine, and nowhere else
    silo.toml                   its name, the SuperLink's address, what its task needs
    key key.pub ca.crt          it proves itself with `key`, and knows the SuperLink by `ca.crt`
"""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feduca.config import Recipe
from feduca.errors import ConfigError, InputError
from feduca.folders import entries, is_folder
from feduca.runs import without_none

APP_NAME = "feduca-deployment"
MODULE = "deployed"


@dataclass(frozen=True)
class ServerFolder:
    """DIR/server, read and checked."""

    path: Path
    address: str  # host:port that silos use
    bind: str  # address the SuperLink listens on
    settings: dict[str, Any]  # of the server app
    silos: tuple[str, ...]

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


@dataclass(frozen=True)
class SiloFolder:
    """DIR/silos/NAME, read and checked."""

    path: Path
    name: str
    superlink: str
    port: int  # of the SuperNode's own local service
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        return self.path / "state"


def silo_names(recipe: Recipe, count: int) -> list[str]:
    """What the silos of a recipe's own data are called: as their files, or `silo-0`, ... where data are dealt."""
    if is_folder(recipe.task.data):
        return list(entries(recipe.task.data)[0])
    return [f"silo-{k}" for k in range(count)]


def init(
    folder: Path,
    recipe: Recipe,
    silos: Sequence[str],
    *,
    address: str = "127.0.0.1:8444",
    bind: str | None = None,
    hosts: Sequence[str] = (),
    out: str = "runs",
    app: Path | None = None,
    ports: Sequence[int] | None = None,
    settings: dict[str, Any] | None = None,
    config: dict[str, dict[str, Any]] | None = None,
) -> Path:
    """Write a deployment for `silos`. `app` is a folder with your own `deployed.py`; without it the recipe's data are dealt.

    `config` holds further entries for `server` and for single silos, such as where their data are.
    """
    from feduca.flower import certificates

    host = _host(address)
    names = list(dict.fromkeys(silos))
    if len(names) != len(silos) or not names:
        raise ConfigError(f"every silo needs a name of its own, got {', '.join(silos) or 'none'}")
    for name in names:
        _check_name(name)
    if app is None and (strangers := set(names) - set(known := silo_names(recipe, len(names)))):
        raise ConfigError(
            f"{recipe.task.data} holds no data of silo {sorted(strangers)[0]!r}; its silos are {', '.join(known[:10])}: "
            f"give --silos their number, or --app with your own silos' data"
        )
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} is not empty; choose a new folder, or remove it (its keys cannot be made again)")
    server, ca = folder / "server", folder / "ca"
    for path in (ca, server / "keys", server / "app", folder / "silos"):
        path.mkdir(parents=True)
    ca.chmod(0o700)
    certificates.make_ca(ca)
    certificates.issue_server(ca, server, list(dict.fromkeys([host, *hosts, "127.0.0.1", "localhost"])))
    shutil.copy(ca / "ca.crt", server / "ca.crt")
    chosen = {
        "silos": len(names),
        "quorum": 1,
        "round-timeout": 3600.0,
        "silos-timeout": 600.0,
        "patience": 3,
        "out": out,
        "again": False,
        "folder": "",
        "dry-run": False,
        **(settings or {}),
        **(config or {}).get("server", {}),
    }
    strangers = set(config or {}) - {"server", *names}
    if strangers:
        raise ConfigError(f"there is no silo {sorted(strangers)[0]!r}; it is server, {', '.join(names)}")
    _write_app(server / "app", recipe, chosen, app)
    listen = bind or (host if host in ("127.0.0.1", "localhost") else "0.0.0.0")
    _toml(server / "server.toml", {"address": address, "bind": listen, "silos": names, "settings": chosen})
    _script(server / "start.sh", 'exec feduca deploy superlink "$(dirname "$0")"')
    _script(server / "run.sh", 'exec feduca deploy run "$(dirname "$0")" "$@"')
    for k, name in enumerate(names):
        add_silo(folder, name, None if ports is None else ports[k], (config or {}).get(name))
    (folder / "README.md").write_text(_README.format(address=address, names=", ".join(names)))
    return folder


def add_silo(folder: Path, name: str, port: int | None = None, config: dict[str, Any] | None = None) -> Path:
    """The folder of one more silo, and its public key among the server's."""
    from feduca.flower import certificates

    _check_name(name)
    server, silo = read_server(folder), folder / "silos" / name
    if not silo.parent.is_dir():
        raise InputError(f"{folder} has no silos/; add a silo where `feduca deploy init` was run, not on the server")
    if silo.exists():
        raise InputError(f"{silo} is there already; choose another name, or remove it first")
    port = port or 9094 + sum(1 for _ in (folder / "silos").iterdir())
    silo.mkdir()
    silo.chmod(0o700)
    (silo / "state").mkdir()  # so that its operator can veto before the first round
    certificates.make_silo_key(silo)
    shutil.copy(server.path / "ca.crt", silo / "ca.crt")
    shutil.copy(silo / "key.pub", server.path / "keys" / f"{name}.pub")
    _toml(silo / "silo.toml", {"name": name, "superlink": server.address, "port": port, "config": config or {}})
    _script(silo / "start.sh", 'exec feduca deploy silo "$(dirname "$0")"')
    return silo


def read_server(path: Path) -> ServerFolder:
    """DIR/server, or DIR itself."""
    path = path / "server" if (path / "server" / "server.toml").is_file() else path
    tree = _read(path / "server.toml", ("address", "bind", "silos", "settings"))
    _host(tree["address"])
    return ServerFolder(path.absolute(), tree["address"], tree["bind"], dict(tree["settings"]), tuple(tree["silos"]))


def read_silo(path: Path) -> SiloFolder:
    """DIR/silos/NAME."""
    tree = _read(path / "silo.toml", ("name", "superlink", "port", "config"))
    _host(tree["superlink"])
    return SiloFolder(path.absolute(), tree["name"], tree["superlink"], int(tree["port"]), dict(tree["config"]))


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", name):
        raise ConfigError(f"{name!r} cannot be a silo's name; use letters, digits, '-', '_' and '.'")


def _host(address: str) -> str:
    host, _, port = str(address).rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"{address!r} is not an address; write host:port, for instance 10.0.0.5:8444")
    return host.strip("[]")


def _read(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    try:
        tree = tomllib.loads(path.read_text())
    except OSError:
        raise InputError(f"there is no {path}; give a folder that `feduca deploy init` wrote") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not TOML: {error}") from None
    missing = [key for key in keys if key not in tree]
    if missing:
        raise InputError(f"{path} lacks {missing[0]!r}; `feduca deploy init` in a new folder shows a complete one")
    return tree


def _write_app(folder: Path, recipe: Recipe, settings: dict[str, Any], own: Path | None) -> None:
    if own is None:
        (folder / f"{MODULE}.py").write_text(_DEPLOYED)
    else:
        if not (own / f"{MODULE}.py").is_file():
            raise InputError(f"{own} holds no {MODULE}.py; it must define server and client, see docs/deploy.md")
        for file in own.glob("*.py"):
            shutil.copy(file, folder / file.name)
    _toml(folder / "recipe.toml", without_none(recipe.plain()))
    write_pyproject(folder, settings)


def write_pyproject(folder: Path, settings: dict[str, Any]) -> None:
    """What makes `folder` a Flower app with these settings."""
    _toml(
        folder / "pyproject.toml",
        {
            "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
            "project": {
                "name": APP_NAME,
                "version": "1.0.0",
                "description": "A federation with rational silos",
                "license": "Apache-2.0",
                "dependencies": ["feduca[flower]"],
            },
            "tool": {
                "hatch": {"build": {"targets": {"wheel": {"packages": ["."]}}}},
                "flwr": {
                    "app": {
                        "publisher": "feduca",
                        "components": {"serverapp": f"{MODULE}:server", "clientapp": f"{MODULE}:client"},
                        "config": settings,
                    }
                },
            },
        },
    )


def _toml(path: Path, tree: dict[str, Any]) -> None:
    import tomlkit

    path.write_text(tomlkit.dumps(tree))


def _script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


_DEPLOYED = '''"""The Flower app of this deployment. Put your own App here to use your own data (docs/deploy.md)."""

from pathlib import Path

from feduca.flower import RecipeApp, client_app, server_app

app = RecipeApp(Path(__file__).with_name("recipe.toml"))
server = server_app(app)
client = client_app(app)
'''

_README = """# A federation of {names}

Copy `server/` to the machine that answers at {address}, and each folder of `silos/` to its own silo's machine.
Keep `ca/` off line. Every machine needs Python 3.11 or newer and `pip install "feduca[flower]"`.

    on the server:        server/start.sh             the SuperLink
    on each silo:         silos/NAME/start.sh         its SuperNode, restarted whenever it ends
    anywhere:             feduca deploy check FOLDER  what is in order and what is not
    on the server, last:  server/run.sh               the federation; stopped half-way, the same command goes on
"""
