"""The command line of a deployment: init, check, up; and the drop-in example on the same SuperLink."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from feduca.cli import app
from feduca.errors import InputError
from feduca.flower import certificates, deploy
from feduca.flower import folder as folders
from feduca.flower.check import examine
from feduca.flower.processes import Process, alive, descendants, environment, free_port, supervise
from flower_world import World, wait_for

EXAMPLES = Path(__file__).parents[2] / "examples"


def feduca(*arguments: str):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def test_help_imports_nothing_heavy():
    code = "import sys, feduca.cli; print([m for m in ('flwr', 'torch', 'numpy', 'pydantic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    shown = feduca("deploy", "--help").output
    assert all(name in shown for name in ("init", "check", "up"))


def test_only_one_package_imports_flower():
    import feduca

    root = Path(feduca.__file__).parent
    strangers = [
        path
        for path in root.rglob("*.py")
        if path.parent.name != "flower" and ("import flwr" in path.read_text() or "from flwr" in path.read_text())
    ]
    assert strangers == []


def test_init_writes_what_each_machine_needs(tmp_path):
    place, app = tmp_path / "d", tmp_path / "app"
    app.mkdir()
    (app / "deployed.py").write_text("# where a silo's data are\n")
    done = feduca(
        "deploy", "init", str(place), "--silos", "north,south", "--address", "fed.example.org:9000", "--host", "10.0.0.5",
        "--config", "north.data=/data/north.csv", "--rounds", "7", "--app", str(app),
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    server = folders.read_server(place)
    assert (server.address, server.bind, server.silos) == ("fed.example.org:9000", "0.0.0.0", ("north", "south"))
    assert deploy.recipe_of(server).rounds == 7
    assert folders.read_silo(place / "silos" / "north").config == {"data": "/data/north.csv"}
    certificate = certificates.read(place / "server" / "server.crt")
    assert certificates.hosts_of(certificate)[:2] == ["fed.example.org", "10.0.0.5"]
    assert certificates.signed_by(certificate, certificates.read(place / "silos" / "south" / "ca.crt"))
    for private in ("ca/ca.key", "server/server.key", "silos/north/key"):
        assert (place / private).stat().st_mode & 0o077 == 0
    # A silo gets its own key and nobody else's; the server gets no private key of a silo.
    assert {p.name for p in (place / "silos" / "north").iterdir()} == {
        "ca.crt",
        "key",
        "key.pub",
        "silo.toml",
        "start.sh",
        "state",
    }
    assert {p.name for p in (place / "server" / "keys").iterdir()} == {"north.pub", "south.pub"}
    assert feduca("deploy", "add", str(place), "west").exit_code == 0
    assert (place / "server" / "keys" / "west.pub").is_file()
    with pytest.raises(InputError, match=r"has no silos/; add a silo where `feduca deploy init` was run"):
        feduca("deploy", "add", str(place / "server"), "late")


def test_keys_that_come_later_are_registered(tmp_path, monkeypatch):
    """Once per change of `keys/`; a key that cannot be registered yet stops nothing."""
    feduca("deploy", "init", str(tmp_path / "d"), "--silos", "1")
    server, stop, calls = folders.read_server(tmp_path / "d"), threading.Event(), []

    def register(asked):
        calls.append(sorted(path.stem for path in (asked.path / "keys").glob("*.pub")))
        if len(calls) == 1:
            raise ValueError("half a key")
        stop.set()
        return ["west"]

    class Running:
        def running(self):
            return not stop.is_set()

    monkeypatch.setattr(deploy, "register", register)
    watcher = threading.Thread(target=deploy.keep_registering, args=(server, Running(), stop, 0.01))
    watcher.start()
    try:
        time.sleep(0.1)
        assert calls == []
        (server.path / "keys" / "west.pub").write_text("half")
        wait_for(lambda: calls, 10, "the first attempt")
        (server.path / "keys" / "west.pub").write_text("the whole key")
        watcher.join(10)
        assert calls == [["silo-0", "west"]] * 2
    finally:
        stop.set()
        watcher.join(10)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--silos", "a,a"], "every silo needs a name of its own"),
        (["--silos", "../up"], "cannot be a silo's name"),
        (
            ["--silos", "north,south"],
            "digits holds no data of silo 'north'; its silos are silo-0, silo-1: give --silos their number",
        ),
        (["--address", "nowhere"], "'nowhere' is not an address"),
        (["--config", "west.data=1"], "there is no silo 'west'"),
        (["--config", "data=1"], "--config wants WHO.KEY=VALUE"),
        (["--app", "no-such-folder"], "holds no deployed.py"),
    ],
)
def test_bad_input_is_one_line(tmp_path, arguments, complaint):
    with pytest.raises(InputError, match=complaint):
        feduca("deploy", "init", str(tmp_path / "d"), *arguments)


def test_silos_of_a_folder_keep_their_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "silos").mkdir()
    for name in ("north", "south"):
        rows = "".join(f"{k},{k % 2},{'train' if k < 6 else 'validation'}\n" for k in range(10))
        (tmp_path / "silos" / f"{name}.csv").write_text("a,label,split\n" + rows)
    assert feduca("deploy", "init", "d", "--set", "task.data=silos").exit_code == 0
    server = folders.read_server(tmp_path / "d")
    assert server.silos == ("north", "south")
    assert deploy.recipe_of(server).task.data == str(tmp_path / "silos")  # apps run in folders of their own
    with pytest.raises(
        InputError, match="holds no data of silo 'west'; its silos are north, south: give --silos their number"
    ):
        feduca("deploy", "init", "e", "--silos", "north,west", "--set", "task.data=silos")


def test_an_old_folder_is_not_overwritten(tmp_path):
    (tmp_path / "key").write_text("precious")
    with pytest.raises(InputError, match="is not empty"):
        feduca("deploy", "init", str(tmp_path))


def test_check_finds_what_is_wrong(tmp_path):
    place = tmp_path / "d"
    port = free_port()
    feduca("deploy", "init", str(place), "--silos", "2", "--address", f"127.0.0.1:{port}")
    found = {f.what: f for f in examine(place)}
    assert not found["SuperLink"].ok
    assert "start it with server/start.sh" in found["SuperLink"].advice()
    assert all(f.ok for f in found.values() if f.what != "SuperLink")
    # A certificate for another name that is about to expire, a key everybody can read, a veto.
    certificates.issue_server(place / "ca", place / "server", ["elsewhere"], days=3)
    (place / "silos" / "silo-0" / "key").chmod(0o644)
    (place / "silos" / "silo-1" / "state" / "veto").touch()
    found = {f.what: f for f in examine(place)}
    for name in ("server certificate's names", "server certificate", "silo-0's key", "silo-1 veto"):
        assert not found[name].ok, name
        assert found[name].remedy
    certificates.make_ca(place / "server")
    assert not {f.what: f for f in examine(place)}["server certificate's issuer"].ok
    assert feduca("deploy", "check", str(place)).exit_code == 1
    with pytest.raises(InputError, match="neither"):
        examine(tmp_path)


def test_the_supervisor_starts_again_and_stops_when_told(tmp_path):
    import threading

    stop, began = threading.Event(), []

    def start():
        began.append(
            Process([sys.executable, "-c", "import time; time.sleep(60)"], env=os.environ, cwd=tmp_path, log_file=None)
        )
        return began[-1]

    thread = threading.Thread(target=supervise, args=(start,), kwargs={"stop": stop, "name": "test", "first_s": 0.1})
    thread.start()
    wait_for(lambda: began, 10)
    began[0].kill()
    wait_for(lambda: len(began) == 2, 10, "a new start")
    stop.set()
    thread.join(15)
    assert not thread.is_alive()
    assert not began[1].running()


def test_nothing_a_process_started_is_left(tmp_path):
    """A child in a session of its own, too."""
    child = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
    process = Process(
        [sys.executable, "-c", child + " start_new_session=True); time.sleep(60)"],
        env=os.environ,
        cwd=tmp_path,
        log_file=None,
    )
    family = wait_for(lambda: descendants(process.pid), 20, "the child")
    process.stop(1)
    time.sleep(0.2)
    assert alive(family) == []


@pytest.mark.slow
def test_up_ends_like_run_and_leaves_nothing_behind(tmp_path):
    command = [sys.executable, "-m", "feduca", "deploy", "up", "--silos", "3", "--rounds", "2", "--json"]
    command += ["--out", str(tmp_path / "runs"), "--set", "engine.threads=1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(tmp_path), cwd=tmp_path)
    family: set = set()
    while process.poll() is None:
        family |= set(descendants(process.pid))
        time.sleep(0.5)
    assert process.returncode == 0
    assert process.stdout is not None
    row = json.loads(process.stdout.read().splitlines()[-1])
    process.stdout.close()
    assert row["rounds"] == 2
    assert {"accuracy", "participation", "seconds", "run_dir", "method", "mechanism", "rule", "offer"} <= row.keys()
    files = {path.name for path in Path(row["run_dir"]).iterdir()}
    assert {"config.toml", "env.json", "rounds.jsonl", "clients.jsonl", "checkpoint", "status.json"} <= files
    assert len(family) >= 8  # SuperLink, three SuperNodes, their helpers, the apps
    assert alive(list(family)) == []


@pytest.mark.slow
def test_the_drop_in_example_and_a_dry_exchange(tmp_path):
    """On one SuperLink: an ordinary Flower app with our strategy, then `check --exchange` of a feduca deployment."""
    world = World(tmp_path)
    try:
        for k, name in enumerate(world.server.silos):
            path = world.place / "silos" / name / "silo.toml"
            path.write_text(path.read_text() + f"partition-id = {k}\nnum-partitions = 3\n")
        world.start()
        server = world.server
        shutil.copytree(EXAMPLES / "flower_app", server.path / "digits")
        number = int(deploy.flwr(server, "run", "digits", deploy.CONNECTION)["run-id"])

        assert wait_for(lambda: deploy.ended(server, number), 180, "the example to finish") == "completed"
        decisions = [[entry["decision"] for entry in world.log(name)] for name in server.silos]
        assert [len(mine) for mine in decisions] == [3, 3, 3]
        assert all(mine[0] == "joined" for mine in decisions)

        found = {f.what: f for f in examine(world.place, exchange=True)}
        assert all(f.ok for f in found.values()), [f for f in found.values() if not f.ok]
        for k, examples in enumerate((20, 27, 34)):
            assert found[f"silo-{k} answers"].seen.startswith(f"{examples} examples")
            assert found[f"silo-{k}'s clock"].ok
    finally:
        world.stop()
