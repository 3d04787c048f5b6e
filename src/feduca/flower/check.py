"""`feduca deploy check`: is a deployment in order? One finding per line, with a remedy; one failure never hides the next."""

from __future__ import annotations

import datetime as dt
import email.utils
import http.client
import json
import os
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from feduca._version import __version__
from feduca.core.finding import Finding
from feduca.errors import FeducaError, InputError
from feduca.flower import approval, certificates, control, deploy, policy
from feduca.flower import folder as folders
from feduca.flower.folder import ServerFolder, SiloFolder
from feduca.flower.front import CHECKED, CHECKER
from feduca.flower.keys import Keys
from feduca.flower.processes import environment

SOON = dt.timedelta(days=30)
RENEW = "where ca/ is kept: `feduca deploy renew FOLDER`; an authority that expires needs a new `deploy init`"
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
        findings += _tried("connection", lambda server=server: _connection(*server.local, server.path))
        findings += _tried("keys", lambda server=server: _keys(server))
        if exchange:
            findings += _tried("exchange", lambda server=server: _exchange(server))
    for path in silos:
        silo = folders.read_silo(path)
        findings += _tried(silo.name, lambda silo=silo: _silo(silo))
        if not servers:
            findings += _tried(silo.name, lambda silo=silo: _connection(*silo.server, silo.path))
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
    remedy = (
        f"where ca/ is kept: `feduca deploy renew FOLDER --host {server.host}`, then copy server.crt and server.key"
    )
    yield Finding("server certificate's names", good, ", ".join(hosts) or "none", remedy)
    signed = certificates.signed_by(certificate, certificates.read(server.path / "ca.crt"))
    yield Finding(
        "server certificate's issuer", signed, "ca.crt" if signed else "somebody else", "use the folder's own"
    )
    yield _expiry("server certificate", certificate.not_valid_after_utc)
    yield from _private(server.path / "server.key")
    if (server.path / "superlink.db").is_file():
        yield from _private(server.path / "superlink.db", "server", "database")
    recipe = deploy.recipe_of(server)
    yield Finding("recipe", True, f"{recipe.name} ({recipe.hash()}), {recipe.rounds} rounds")
    if recipe.privacy.secure_aggregation:
        silos, least = len(list((server.path / "keys").glob("*.pub"))), recipe.privacy.least
        seen = f"{silos} silos, and a sum needs {least} fresh updates (privacy.least)"
        remedy = "have more silos than that: whoever declines or is absent costs a round its sum"
        yield Finding("secure aggregation", silos > least, seen, remedy, optional=True)
    out = deploy.out_of(server)
    there = next(p for p in (out, *out.parents) if p.exists())
    yield Finding(
        "output folder", os.access(there, os.W_OK), str(out), "make it writable, or change out in server.toml"
    )


def _silo(silo: SiloFolder) -> Iterator[Finding]:
    yield from _authority(silo.path, silo.name)
    yield from _private(silo.path / "key", silo.name)
    yield from _pair(silo)
    veto, leave = (silo.state / "veto").is_file(), (silo.state / "leave").is_file()
    if veto or leave:
        word = "leave" if leave else "veto"
        yield Finding(
            f"{silo.name} {word}", False, f"{silo.state / word} is there", "remove it to take part", optional=True
        )
    try:
        said = policy.read(silo.path).in_words()
        yield Finding(f"{silo.name}'s policy", True, "; ".join(said) or "none of its own: the recipe decides")
    except InputError as error:
        yield Finding(f"{silo.name}'s policy", False, str(error), "mend it: until then this silo does nothing")
    yield from _data(silo)
    log = silo.state / "log.jsonl"
    if log.is_file():
        last = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
        if "round" in last and last["decision"] != "failed":
            seen = f"round {last['round']}: {last['decision']}, {last['reason']}"
            yield Finding(f"{silo.name} last decision", True, seen)
        else:
            yield Finding(
                f"{silo.name} last message", False, f"{last['decision']}: {last['reason']}", f"see {log}", optional=True
            )


def _data(silo: SiloFolder) -> Iterator[Finding]:
    """The approved app, and whether it reads this silo's data."""
    what = f"{silo.name}'s app"
    remedy = f"look at it and approve it: `feduca silo approve {silo.path}`"
    if (silo.path / approval.PROPOSED).is_file():
        yield Finding(what, False, "the server sent another one than was approved", remedy, optional=True)
    if not silo.app:
        yield Finding(what, False, "none is approved", remedy)
        return
    command = [sys.executable, "-m", "feduca.flower.rehearse", str(silo.path)]
    env = environment(silo.state / "flwr")
    done = subprocess.run(command, env=env, capture_output=True, text=True, encoding="utf-8", timeout=300)
    try:
        told = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        told = {"error": (done.stderr.strip().splitlines() or ["it said nothing"])[-1]}
    if "error" in told:
        yield Finding(
            f"{silo.name}'s data", False, told["error"], f"mend [config] in {silo.path}/silo.toml, the data or the app"
        )
    elif "examples" in told:
        yield Finding(f"{silo.name}'s data", True, f"{told['examples']} examples")


def _authority(path: Path, name: str = "server") -> Iterator[Finding]:
    yield _expiry(f"{name}'s certificate authority", certificates.read(path / "ca.crt").not_valid_after_utc)


def _expiry(what: str, until: dt.datetime) -> Finding:
    left = until - dt.datetime.now(dt.UTC)
    if left < dt.timedelta(0):
        return Finding(what, False, f"expired on {until:%Y-%m-%d}", RENEW)
    return Finding(what, left > SOON, f"valid until {until:%Y-%m-%d}", RENEW, optional=True)


def _private(path: Path, name: str = "server", what: str = "key") -> Iterator[Finding]:
    if not path.is_file():
        yield Finding(f"{name}'s {what}", False, f"no {path}", "copy the folder again, with all its files")
        return
    mode = stat.S_IMODE(path.stat().st_mode)
    yield Finding(f"{name}'s {what}", mode & 0o077 == 0, f"mode {mode:o}", f"chmod 600 {path}")


def _pair(silo: SiloFolder) -> Iterator[Finding]:
    """Whether the private key is one, and the one whose public half the server was given."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key

    what, remedy = (
        f"{silo.name}'s key pair",
        "copy the folder's own key again, or make a new pair: `feduca deploy rotate`",
    )
    if not (silo.path / "key").is_file():
        return  # said already
    try:
        key = load_ssh_private_key((silo.path / "key").read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        yield Finding(what, False, f"key is no private key ({error})", remedy)
        return
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    if (silo.path / "key.pub").is_file():
        known = (silo.path / "key.pub").read_bytes().split()[:2]
        same = public.split()[:2] == known
        yield Finding(what, same, "key fits key.pub" if same else "key is not the one of key.pub", remedy)


def _connection(host: str, port: int, path: Path) -> Iterator[Finding]:
    """Is the SuperLink there, is it the one we trust, is its control interface closed, and what does its clock say?"""
    address = f"{host}:{port}"
    context = ssl.create_default_context(cafile=str(path / "ca.crt"))
    connection = http.client.HTTPSConnection(host, port, timeout=5, context=context)
    before = time.time()
    try:
        told = {"content-type": "application/x-protobuf", "user-agent": CHECKER}
        connection.request("POST", CHECKED, b"", told)
        answer = connection.getresponse()
        date = answer.getheader("date")
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
    remedy = (
        "whoever reaches this port runs code on the server and every silo: start the SuperLink with server/start.sh"
    )
    yield Finding("control interface", answer.status == 404, f"{answer.status} at {address}", remedy)
    if date is not None:
        away = abs(email.utils.parsedate_to_datetime(date).timestamp() - (before + time.time()) / 2)
        remedy = "set the one that is off (NTP); the server refuses requests signed by a clock that is ahead or minutes behind"
        yield Finding("clocks", away < CLOCKS, f"this machine's and the server's are {away:.0f} s apart", remedy)


def _keys(server: ServerFolder) -> Iterator[Finding]:
    if not deploy.reachable(server):
        return
    belong = Keys(server.path / "keys").names()
    for node in control.nodes(server):
        if node.public_key not in belong:
            remedy = (
                "a key is missing in server/keys, or a stranger was registered; start.sh, started again, removes it"
            )
            yield Finding("unknown node", False, f"{node.name or 'no name'} ({node.node_id}), {node.status}", remedy)
    known = control.registered(server)
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
    deadline = time.monotonic() + 240
    while not result.is_file():
        if time.monotonic() > deadline:
            yield Finding("exchange", False, f"run {number} gave no answer within 240 s", "see server/superlink.log")
            return
        time.sleep(0.3)
    told = json.loads(result.read_text(encoding="utf-8"))
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
        elif "takes no part" in event:
            yield Finding(
                "exchange", False, event, "its operator decides, by hours, approval or a pause", optional=True
            )
    missing = sorted(
        name
        for name in set(server.silos) - {silo["silo"] for silo in told["silos"]}
        if not any(event.startswith(f"{name} (node ") for event in told["events"])
    )
    if missing:
        yield Finding(
            "exchange", False, f"no answer from {', '.join(missing)}", "start their SuperNodes", optional=True
        )
