"""`feduca deploy check`: is a deployment in order? One finding per line, with a remedy; one failure never hides the next."""

from __future__ import annotations

import datetime as dt
import email.utils
import http.client
import json
import os
import ssl
import stat
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from feduca._version import __version__
from feduca.doctor import Finding
from feduca.errors import FeducaError, InputError
from feduca.flower import certificates, deploy
from feduca.flower import folder as folders
from feduca.flower.folder import ServerFolder, SiloFolder

SOON = dt.timedelta(days=30)
CLOCKS = 60.0  # seconds that clocks may differ; Flower's signed requests are refused beyond about that


def examine(folder: Path, *, exchange: bool = False) -> list[Finding]:
    """All findings of a deployment's folder, a server's or a silo's. `exchange` also asks the silos who they are."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; give one that `feduca deploy init` wrote")
    findings = list(_tried("versions", _versions))
    servers = (
        [folder / "server"] if (folder / "server").is_dir() else [folder] if (folder / "server.toml").is_file() else []
    )
    silos = [folder] if (folder / "silo.toml").is_file() else []
    silos += sorted((folder / "silos").iterdir()) if (folder / "silos").is_dir() else []
    if not servers and not silos:
        raise InputError(
            f"{folder} holds neither server.toml nor silo.toml; give a folder that `feduca deploy init` wrote"
        )
    for path in servers:
        server = folders.read_server(path)
        findings += _tried("server", lambda server=server: _server(server))
        findings += _tried("connection", lambda server=server: _connection(f"127.0.0.1:{server.port}", server.path))
        findings += _tried("keys", lambda server=server: _keys(server))
        if exchange:
            findings += _tried("exchange", lambda server=server: _exchange(server))
    for path in silos:
        silo = folders.read_silo(path)
        findings += _tried(silo.name, lambda silo=silo: _silo(silo))
        if not servers:
            findings += _tried(silo.name, lambda silo=silo: _connection(silo.superlink, silo.path))
    return findings


def _tried(name: str, check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    found: list[Finding] = []
    try:
        found.extend(check())
    except FeducaError as error:
        found.append(Finding(name, False, str(error)))
    except Exception as error:  # a check reports whatever is wrong
        found.append(Finding(name, False, f"{type(error).__name__}: {error}", "run with --debug and report this"))
    return found


def _versions() -> Iterator[Finding]:
    yield Finding("feduca", True, __version__)
    yield Finding("python", sys.version_info >= (3, 11), sys.version.split()[0], "use Python 3.11 or newer")
    try:
        seen = version("flwr")
        yield Finding("flwr", seen.startswith("1.41."), seen, 'pip install "flwr>=1.41,<1.42"')
    except PackageNotFoundError:
        yield Finding("flwr", False, "not installed", 'pip install "feduca[flower]"')
    from shutil import which

    for program in ("flower-superlink", "flower-supernode", "flwr"):
        beside = Path(sys.executable).with_name(program)
        where = str(beside) if beside.exists() else which(program)
        if where is None:
            yield Finding(program, False, "not found", "install feduca[flower] into the Python that runs feduca")


def _server(server: ServerFolder) -> Iterator[Finding]:
    yield from _authority(server.path)
    certificate = certificates.read(server.path / "server.crt")
    hosts = certificates.hosts_of(certificate)
    good = server.host in hosts
    remedy = f"issue one for {server.host}: `feduca deploy init --address {server.address}` in a new folder"
    yield Finding("server certificate's names", good, ", ".join(hosts) or "none", remedy)
    signed = certificates.signed_by(certificate, certificates.read(server.path / "ca.crt"))
    yield Finding(
        "server certificate's issuer", signed, "ca.crt" if signed else "somebody else", "use the folder's own"
    )
    yield _expiry("server certificate", certificate.not_valid_after_utc)
    yield from _private(server.path / "server.key")
    recipe = deploy.recipe_of(server)
    yield Finding("recipe", True, f"{recipe.name} ({recipe.hash()}), {recipe.rounds} rounds")
    out = deploy.out_of(server)
    there = next(p for p in (out, *out.parents) if p.exists())
    yield Finding(
        "output folder", os.access(there, os.W_OK), str(out), "make it writable, or change out in server.toml"
    )


def _silo(silo: SiloFolder) -> Iterator[Finding]:
    yield from _authority(silo.path, silo.name)
    yield from _private(silo.path / "key", silo.name)
    veto, leave = (silo.state / "veto").is_file(), (silo.state / "leave").is_file()
    if veto or leave:
        word = "leave" if leave else "veto"
        yield Finding(
            f"{silo.name} {word}", False, f"{silo.state / word} is there", "remove it to take part", optional=True
        )
    log = silo.state / "log.jsonl"
    if log.is_file():
        last = json.loads(log.read_text().splitlines()[-1])
        yield Finding(
            f"{silo.name} last decision", True, f"round {last['round']}: {last['decision']}, {last['reason']}"
        )


def _authority(path: Path, name: str = "server") -> Iterator[Finding]:
    yield _expiry(f"{name}'s certificate authority", certificates.read(path / "ca.crt").not_valid_after_utc)


def _expiry(what: str, until: dt.datetime) -> Finding:
    left = until - dt.datetime.now(dt.UTC)
    if left < dt.timedelta(0):
        return Finding(what, False, f"expired on {until:%Y-%m-%d}", "issue a new one")
    return Finding(what, left > SOON, f"valid until {until:%Y-%m-%d}", "issue a new one soon", optional=True)


def _private(path: Path, name: str = "server") -> Iterator[Finding]:
    if not path.is_file():
        yield Finding(f"{name}'s key", False, f"no {path}", "copy the folder again, with all its files")
        return
    mode = stat.S_IMODE(path.stat().st_mode)
    yield Finding(f"{name}'s key", mode & 0o077 == 0, f"mode {mode:o}", f"chmod 600 {path}")


def _connection(address: str, path: Path) -> Iterator[Finding]:
    """Is the SuperLink there, is it the one we trust, and what does its clock say?"""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=str(path / "ca.crt"))
    connection = http.client.HTTPSConnection(host, int(port), timeout=5, context=context)
    before = time.time()
    try:
        connection.request("GET", "/")
        date = connection.getresponse().getheader("date")
    except ssl.SSLCertVerificationError as error:
        remedy = (
            "this is not the SuperLink that ca.crt vouches for under that name; check the address and copy ca.crt again"
        )
        yield Finding("SuperLink", False, f"{address}: {error.verify_message}", remedy)
        return
    except OSError as error:
        remedy = "start it with server/start.sh, and open the port in between"
        yield Finding("SuperLink", False, f"{address} does not answer ({error})", remedy)
        return
    finally:
        connection.close()
    yield Finding("SuperLink", True, f"{address} answers, and its certificate is good")
    if date is not None:
        away = abs(email.utils.parsedate_to_datetime(date).timestamp() - (before + time.time()) / 2)
        yield Finding("clocks", away < CLOCKS, f"{away:.0f} s apart", "set both machines' clocks (NTP)")


def _keys(server: ServerFolder) -> Iterator[Finding]:
    if not deploy.reachable(f"127.0.0.1:{server.port}"):
        return
    known = deploy.registered(server)
    for path in sorted((server.path / "keys").glob("*.pub")):
        status = known.get(path.stem)
        if status is None:
            remedy = "see what server/start.sh printed; started again, it registers every key in server/keys"
            yield Finding(f"{path.stem}'s registration", False, "its key is unknown to the SuperLink", remedy)
            continue
        remedy = f"start silos/{path.stem}/start.sh on its machine"
        yield Finding(path.stem, status == "online", status, remedy, optional=True)


def _exchange(server: ServerFolder) -> Iterator[Finding]:
    """Ask every connected silo who it is, through the app, as a run would."""
    result = deploy.out_of(server) / f".dry-run-{deploy.recipe_of(server).hash()}.json"
    result.unlink(missing_ok=True)
    number = deploy.submit(server, **{"dry-run": True})
    deadline = time.monotonic() + 120
    while not result.is_file():
        if time.monotonic() > deadline:
            yield Finding("exchange", False, f"run {number} gave no answer within 120 s", "see server/superlink.log")
            return
        time.sleep(0.3)
    told = json.loads(result.read_text())
    result.unlink()
    for silo in told["silos"]:
        away = abs(silo["clock"] - silo["heard"])
        yield Finding(
            f"{silo['silo']} answers",
            silo["feduca"] == __version__,
            f"{silo['examples']} examples, feduca {silo['feduca']}, flwr {silo['flwr']}",
            f"install feduca {__version__} there",
        )
        yield Finding(f"{silo['silo']}'s clock", away < CLOCKS, f"{away:.0f} s apart", "set its clock (NTP)")
    for event in told["events"]:
        if "turned away" in event:
            yield Finding("exchange", False, event, "mend that silo's installation or configuration")
    missing = sorted(set(server.silos) - {silo["silo"] for silo in told["silos"]})
    if missing:
        yield Finding(
            "exchange", False, f"no answer from {', '.join(missing)}", "start their SuperNodes", optional=True
        )
