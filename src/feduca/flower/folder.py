"""`feduca deploy init`: everything a federation needs, in one folder, ready to be copied to its machines.

DIR/README.md                   who gets what
DIR/ca/                         the certificate authority's key; keep it off line
DIR/server/                     goes to the machine everybody can reach
    app/                        the Flower app: recipe.toml, and where the data are
    server.toml                 address, timeouts, how many silos
    server.crt server.key ca.crt    TLS
    keys/NAME.pub               the silos' public keys, to be registered
DIR/silos/NAME/                 goes to that silo's machine, and nowhere else
    silo.toml                   its name, the SuperLink's address, the approved app's fingerprint, what its task needs
    key key.pub ca.crt          it proves itself with `key`, and knows the SuperLink by `ca.crt`
    approved.fab                the app it runs; no other one (approval.py)
    state/                      what its programs write, their log, too; they write nowhere else
    peers/NAME.pub              the other silos' public keys: whom it trusts in a secure sum (docs/secure-aggregation.md)
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feduca.errors import ConfigError, InputError
from feduca.flower.operate import settings as watching
from feduca.recipes.folders import NATURAL, entries, is_folder
from feduca.recipes.schema import Recipe
from feduca.runs.directory import without_none

APP_NAME = "feduca-deployment"
MODULE = "deployed"

SETTINGS: dict[str, Any] = {  # of the server app, as server.py reads them
    "silos": 1,
    "quorum": 1,
    "round-timeout": 3600.0,
    "silos-timeout": 600.0,
    "policy-timeout": 604800.0,
    "patience": 3,
    "out": "runs",
    "again": False,
    "folder": "",
    "dry-run": False,
}
OURS = ("again", "folder", "dry-run")  # of one run; not in server.toml
PART = ".part"  # in a folder that is being filled
WATCHING = ("control", "metrics", "overdue", "alert")  # of server.toml, beside what it must have


@dataclass(frozen=True)
class ServerFolder:
    """DIR/server, read and checked."""

    path: Path
    address: str  # host:port that silos use
    bind: str  # address the front listens on
    control: int  # port of the SuperLink itself, on this machine's loopback
    settings: dict[str, Any]  # of the server app
    silos: tuple[str, ...]
    operate: watching.Operate = field(default_factory=watching.Operate)  # how it is watched

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def local(self) -> tuple[str, int]:
        """Where the front is reached from its own machine."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.bind, self.bind), self.port


@dataclass(frozen=True)
class SiloFolder:
    """DIR/silos/NAME, read and checked."""

    path: Path
    name: str
    superlink: str
    port: int  # of the SuperNode's own local service
    app: str = ""  # the approved app's fingerprint; none is approved where this is empty
    config: dict[str, Any] = field(default_factory=dict)
    fresh: bool = False  # a new Python for every message, in place of a fork (template.py)

    @property
    def state(self) -> Path:
        return self.path / "state"

    @property
    def server(self) -> tuple[str, int]:
        host, _, port = self.superlink.rpartition(":")
        return host.strip("[]"), int(port)


@contextlib.contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `folder` once it is; where that fails nothing of it is left."""
    there = folder.is_dir()
    part = folder / PART if there else folder.absolute().with_name(f".{folder.name}{PART}")
    shutil.rmtree(part, ignore_errors=True)  # of one that was killed
    part.mkdir(parents=True)
    try:
        yield part
        if there:  # it may be somebody's working directory, or a disk of its own
            for path in part.iterdir():
                path.rename(folder / path.name)
            part.rmdir()
        else:
            part.rename(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def silo_names(recipe: Recipe, count: int) -> list[str]:
    """What the silos of a recipe's own data are called: as their files, or where nature put them; `silo-0`, ... where dealt."""
    if is_folder(recipe.task.data):
        return list(entries(recipe.task.data)[0])
    if recipe.task.data in NATURAL:
        from feduca.tasks.data.natural import silos

        return silos(recipe.task.data, recipe.task.data_dir)
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
    control: int | None = None,
    settings: dict[str, Any] | None = None,
    config: dict[str, dict[str, Any]] | None = None,
    metrics: str = "",
    beside: Callable[[Path], None] = lambda folder: None,
) -> Path:
    """Write a deployment for `silos`, all of it or nothing.

    `app` is a folder with your own `deployed.py`; without it the recipe's data are dealt. `bind` is the address of the one
    interface to listen on, `control` the port of the SuperLink behind the front, `metrics` where figures and health are served.
    `config` holds further entries for `server` and for single silos, such as where their data are. `beside` writes more into
    the folder.
    """
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
    listen = bind or (host if host in ("127.0.0.1", "localhost") else "0.0.0.0")
    _check_bind(listen)
    strangers = set(config or {}) - {"server", *names}
    if strangers:
        raise ConfigError(f"there is no silo {sorted(strangers)[0]!r}; it is server, {', '.join(names)}")
    if folder.exists() and any(path.name != PART for path in folder.iterdir()):
        raise InputError(f"{folder} is not empty; choose a new folder, or remove it (its keys cannot be made again)")
    port = int(address.rpartition(":")[2])
    head = {"address": address, "bind": listen, "control": control or (port + 1 if port < 65535 else port - 1)}
    head |= {"metrics": metrics} if metrics else {}
    chosen = {
        **{name: value for name, value in SETTINGS.items() if name not in OURS},
        "silos": len(names),
        "out": out,
        **(settings or {}),
        **(config or {}).get("server", {}),
    }
    with whole(folder) as part:
        _write_server(part, recipe, app, {**head, "silos": names, "settings": chosen}, [host, *hosts])
        for k, name in enumerate(names):
            add_silo(part, name, None if ports is None else ports[k], (config or {}).get(name))
        (part / "README.md").write_text(_README.format(address=address, names=", ".join(names)), encoding="utf-8")
        beside(part)
    return folder


def _write_server(folder: Path, recipe: Recipe, app: Path | None, told: dict[str, Any], hosts: Sequence[str]) -> None:
    from feduca.flower import certificates

    server, ca = folder / "server", folder / "ca"
    for path in (ca, server / "keys", server / "app", folder / "silos"):
        path.mkdir(parents=True)
    ca.chmod(0o700)
    server.chmod(0o700)
    certificates.make_ca(ca)
    also = [] if told["bind"] in ("0.0.0.0", "::") else [told["bind"]]
    certificates.issue_server(ca, server, list(dict.fromkeys([*hosts, *also, "127.0.0.1", "localhost"])))
    shutil.copy(ca / "ca.crt", server / "ca.crt")
    _write_app(server / "app", recipe, app)
    _toml(server / "server.toml", told)
    _script(server / "start.sh", 'deploy superlink "$(dirname "$0")"')
    _script(server / "run.sh", 'deploy run "$(dirname "$0")" "$@"')


def add_silo(folder: Path, name: str, port: int | None = None, config: dict[str, Any] | None = None) -> Path:
    """The folder of one more silo, and its public key among the server's."""
    from feduca.flower import approval, certificates

    _check_name(name)
    server, silo = read_server(folder), folder / "silos" / name
    if not silo.parent.is_dir():
        raise InputError(f"{folder} has no silos/; add a silo where `feduca deploy init` was run, not on the server")
    _check_config(silo / "silo.toml", config or {})
    if silo.exists():
        raise InputError(f"{silo} is there already; choose another name, or remove it first")
    port = port or 9095 + sum(1 for _ in silo.parent.iterdir())
    with whole(silo) as part:
        part.chmod(0o700)
        (part / "state").mkdir(mode=0o700)  # so that its operator can veto before the first round
        certificates.make_silo_key(part)
        shutil.copy(server.path / "ca.crt", part / "ca.crt")
        _toml(
            part / "silo.toml",
            {"name": name, "superlink": server.address, "port": port, "app": "", "config": config or {}},
        )
        approval.approve(part, approval.bundle(server.path / "app"))
        _script(part / "start.sh", 'deploy silo "$(dirname "$0")"')
    shutil.copy(silo / "key.pub", server.path / "keys" / f"{name}.pub")
    introduce(folder)
    return silo


def introduce(folder: Path) -> None:
    """Every silo's public key to every other silo whose folder is still here."""
    homes = [path for path in sorted((folder / "silos").iterdir()) if (path / "key.pub").is_file()]
    for home in homes:
        (home / "peers").mkdir(exist_ok=True)
        for key in sorted((folder / "server" / "keys").glob("*.pub")):
            if key.stem != home.name:
                shutil.copy(key, home / "peers" / key.name)


def remove_key(server: ServerFolder, name: str) -> None:
    """Who has no key in `keys/` is nobody."""
    key = server.path / "keys" / f"{name}.pub"
    if not key.is_file():
        known = ", ".join(path.stem for path in sorted(key.parent.glob("*.pub"))) or "none"
        raise InputError(f"{server.path} has no key of silo {name!r}; it has {known}")
    key.unlink()


def rotate(folder: Path, name: str | None) -> tuple[SiloFolder, ServerFolder | None]:
    """A new key pair for a silo, and its public key among the server's where that folder is here, too."""
    from feduca.flower import certificates

    if name is None and not (folder / "silo.toml").is_file():
        raise InputError(f"{folder} is no silo's folder; name the silo, too")
    silo = read_silo(folder if name is None else folder / "silos" / name)
    certificates.make_silo_key(silo.path)
    if not (folder / "server" / "server.toml").is_file():
        return silo, None
    server = read_server(folder)
    part = server.path / "keys" / f".{silo.name}.part"
    shutil.copy(silo.path / "key.pub", part)
    part.replace(part.with_name(f"{silo.name}.pub"))
    introduce(server.path.parent)
    return silo, server


def renew(folder: Path, hosts: Sequence[str] = ()) -> list[str]:
    """A new server certificate for the names of the present one and `hosts`; returns them all."""
    from feduca.flower import certificates

    server, ca = read_server(folder), folder / "ca"
    if not (ca / "ca.key").is_file():
        raise InputError(f"{ca}/ca.key is not there; renew where `feduca deploy init` was run, or where you keep ca/")
    old = certificates.read(server.path / "server.crt")
    names = list(dict.fromkeys([*certificates.hosts_of(old), *hosts]))
    certificates.issue_server(ca, server.path, names)
    return names


def read_server(path: Path) -> ServerFolder:
    """DIR/server, or DIR itself."""
    path = path / "server" if (path / "server" / "server.toml").is_file() else path
    tree = _read(path / "server.toml", ("address", "bind", "silos", "settings"), WATCHING)
    _host(tree["address"])
    _check_bind(tree["bind"])
    control = int(tree.get("control", int(tree["address"].rpartition(":")[2]) + 1))
    head = path.absolute(), tree["address"], tree["bind"], control, dict(tree["settings"]), tuple(tree["silos"])
    return ServerFolder(*head, watching.read(tree, path / "server.toml"))


def read_silo(path: Path) -> SiloFolder:
    """DIR/silos/NAME."""
    tree = _read(path / "silo.toml", ("name", "superlink", "port", "config"), ("app", "fresh"))
    _host(tree["superlink"])
    _check_config(path / "silo.toml", tree["config"])
    head = tree["name"], tree["superlink"], int(tree["port"]), str(tree.get("app", ""))
    if not isinstance(fresh := tree.get("fresh", False), bool):
        raise InputError(f"{path / 'silo.toml'}: fresh is {fresh!r}; write true or false, without quotes")
    return SiloFolder(path.absolute(), *head, dict(tree["config"]), fresh or not sys.platform.startswith("linux"))


def check_user(*paths: Path) -> None:
    """Root writes nothing into a folder of another user's: what root made there, that user's programs could not read."""
    if getattr(os, "geteuid", lambda: -1)() != 0:  # not every system has users
        return
    for path in paths:
        if path.exists() and (seen := path.stat()).st_uid != 0:
            raise InputError(
                f"{path} belongs to {_name(seen.st_uid)}, and this is root; run it as that user: {_as(seen)}"
            )


def _name(user: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def _as(seen: os.stat_result) -> str:
    """The same command as that user."""
    command = " ".join(shlex.quote(word) for word in sys.argv)
    if (name := _name(seen.st_uid)).startswith("user "):  # one that only a container knows
        return f"setpriv --reuid={seen.st_uid} --regid={seen.st_gid} --clear-groups {command}"
    return f"runuser -u {name} -- {command}"


def _check_bind(address: str) -> None:
    try:
        ipaddress.ip_address("127.0.0.1" if address == "localhost" else address)
    except ValueError:
        raise ConfigError(
            f"bind is {address!r}; write the IP address of one interface, for instance 10.0.0.5, or 0.0.0.0 for all"
        ) from None


def _check_config(path: Path, config: dict[str, Any]) -> None:
    """What Flower hands on from a SuperNode's command line; it drops part of other names, and ends at other values."""
    for name, value in config.items():
        if name in ("silo", "folder"):
            raise InputError(
                f"{path}: [config] says {name} = {value!r}, which feduca itself tells the app; choose another name"
            )
        short = isinstance(value, (bool, int, float)) or (isinstance(value, str) and '"' not in value)
        if not short or not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
            raise InputError(
                f"{path}: [config] says {name!r} = {value!r}; write a number, true, false or a text without double quotes, under"
                " a name of letters, digits, '-', '_' and '.'"
            )


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", name):
        raise ConfigError(f"{name!r} cannot be a silo's name; use letters, digits, '-', '_' and '.'")


def _host(address: str) -> str:
    host, _, port = str(address).rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"{address!r} is not an address; write host:port, for instance 10.0.0.5:8444")
    return host.strip("[]")


def _read(path: Path, keys: Sequence[str], optional: Sequence[str] = ()) -> dict[str, Any]:
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"there is no {path}; give a folder that `feduca deploy init` wrote") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); run this as the user whose folder it is") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not TOML: {error}") from None
    missing = [key for key in keys if key not in tree]
    if missing:
        raise InputError(f"{path} lacks {missing[0]!r}; `feduca deploy init` in a new folder shows a complete one")
    known = (*keys, *optional)
    if strange := [key for key in tree if key not in known]:
        raise InputError(
            f"{path} has an entry or section {strange[0]!r} that is not known; it takes {', '.join(known)}"
        )
    return tree


def _write_app(folder: Path, recipe: Recipe, own: Path | None) -> None:
    if own is None:
        (folder / f"{MODULE}.py").write_text(_DEPLOYED, encoding="utf-8")
    else:
        if not (own / f"{MODULE}.py").is_file():
            raise InputError(f"{own} holds no {MODULE}.py; it must define server and client, see docs/deploy.md")
        for file in own.glob("*.py"):
            shutil.copy(file, folder / file.name)
    _toml(folder / "recipe.toml", without_none(recipe.plain()))
    # Settings come with the run and from server.toml: they are no part of the app, which silos approve.
    _toml(
        folder / "pyproject.toml",
        {
            "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
            "project": {
                "name": APP_NAME,
                "version": "1.0.0",
                "description": "A federation with rational silos",
                "license": "Apache-2.0",
                "requires-python": ">=3.11",
                "dependencies": [],  # feduca is installed beside Flower, on every machine
            },
            "tool": {
                "hatch": {"build": {"targets": {"wheel": {"packages": ["."]}}}},
                "flwr": {
                    "app": {
                        "publisher": "feduca",
                        "components": {"serverapp": f"{MODULE}:server", "clientapp": f"{MODULE}:client"},
                        "config": dict(SETTINGS),
                    }
                },
            },
        },
    )


def _toml(path: Path, tree: dict[str, Any]) -> None:
    import tomlkit

    path.write_text(tomlkit.dumps(tree), encoding="utf-8")


def _script(path: Path, line: str) -> None:
    """Works without an activated environment: with what bundle/install.sh made, this machine's feduca, or the one in PATH."""
    here = shlex.quote(str(Path(sys.executable).with_name("feduca")))
    path.write_text(
        f"""#!/bin/sh
here={here}
own=$(dirname "$0")/venv/bin/feduca
[ -x "$own" ] || own=$here
feduca=${{FEDUCA:-$own}}
[ -x "$feduca" ] || feduca=feduca
exec "$feduca" {line}
""",
        encoding="utf-8",
    )
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
Keep `ca/` off line. Every machine needs Python 3.11 or newer and `pip install "feduca[flower]"`, or, where its folder has
one, `bundle/install.sh`: before it, `sha256sum -c SHA256SUMS` in `bundle/`, with the sum of `SHA256SUMS` compared over the
telephone.

    on the server:        server/start.sh             the SuperLink
    on each silo:         silos/NAME/start.sh         its SuperNode, restarted whenever it ends
    anywhere:             feduca deploy check FOLDER  what is in order and what is not
    on the server, last:  server/run.sh               the federation; stopped half-way, the same command goes on
"""
