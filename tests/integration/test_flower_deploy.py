"""The command line of a deployment: init, check, up; and the drop-in example on the same SuperLink."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from feduca.cli.main import app
from feduca.errors import InputError, RunError
from feduca.flower import certificates, control, deploy
from feduca.flower import folder as folders
from feduca.flower.check import examine
from feduca.flower.keys import Keys
from feduca.flower.processes import Process, alive, descendants, environment, free_port, supervise
from flower_world import World, wait_for

EXAMPLES = Path(__file__).parents[2] / "examples"


def feduca(*arguments: str):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def test_help_imports_nothing_heavy():
    code = "import sys, feduca.cli.main; print([m for m in ('flwr', 'torch', 'numpy', 'pydantic') if m in sys.modules])"
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
        if path.parent.name != "flower"
        and path.name != "with_flower.py"  # the benchmark beside Flower's simulation
        and ("import flwr" in path.read_text() or "from flwr" in path.read_text())
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
        "peers",
        "silo.toml",
        "start.sh",
        "state",
        "approved.fab",
    }
    assert {p.name for p in (place / "server" / "keys").iterdir()} == {"north.pub", "south.pub"}
    assert feduca("deploy", "add", str(place), "west").exit_code == 0
    assert (place / "server" / "keys" / "west.pub").is_file()
    with pytest.raises(InputError, match=r"has no silos/; add a silo where `feduca deploy init` was run"):
        feduca("deploy", "add", str(place / "server"), "late")


def test_keys_that_come_later_are_registered(tmp_path, monkeypatch):
    """At once and at every change of `keys/`, until it succeeds; half a key stops nothing, a key taken away is a change."""
    feduca("deploy", "init", str(tmp_path / "d"), "--silos", "1")
    server, stop, calls = folders.read_server(tmp_path / "d"), threading.Event(), []

    def register(asked):
        calls.append(sorted(Keys(asked.path / "keys").names().values()))
        if len(calls) == 1:
            raise ValueError("the SuperLink is busy")
        return ["west"], []

    class Running:
        def running(self):
            return not stop.is_set()

    monkeypatch.setattr(control, "register", register)
    watcher = threading.Thread(target=control.keep_registering, args=(server, Running(), stop, 0.01))
    watcher.start()
    try:
        west, new = server.path / "keys" / "west.pub", tmp_path / "new"
        new.mkdir()
        certificates.make_silo_key(new)
        wait_for(lambda: len(calls) > 1, 60, "what came before it looked, and once more after a failure")
        west.write_bytes((new / "key.pub").read_bytes()[:40])
        time.sleep(0.1)
        assert calls == [["silo-0"], ["silo-0"]]
        west.write_bytes((new / "key.pub").read_bytes())
        wait_for(lambda: len(calls) > 2, 60, "the new key")
        west.unlink()
        wait_for(lambda: len(calls) > 3, 60, "its removal")
        assert calls[2:] == [["silo-0", "west"], ["silo-0"]]
    finally:
        stop.set()
        watcher.join(60)


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
    wait_for(lambda: began, 60)
    began[0].kill()
    wait_for(lambda: len(began) == 2, 60, "a new start")
    stop.set()
    thread.join(60)
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
    family = wait_for(lambda: descendants(process.pid), 120, "the child")
    process.stop(1)
    time.sleep(0.2)
    assert alive(family) == []


@pytest.mark.slow
def test_up_ends_like_run_and_leaves_nothing_behind(tmp_path):
    command = [sys.executable, "-m", "feduca", "deploy", "up", "--silos", "3", "--rounds", "2", "--json"]
    port = free_port()
    command += ["--out", str(tmp_path / "runs"), "--set", "engine.threads=1", "--metrics", f"127.0.0.1:{port}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(tmp_path), cwd=tmp_path)
    family: set = set()
    health: set[str] = set()
    while process.poll() is None:
        family |= set(descendants(process.pid))
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as said,
        ):
            health.add(said.read().decode())
        time.sleep(0.5)
    assert any("of 2, running" in said for said in health), health
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
        world.wait_online()
        server = world.server
        shutil.copytree(EXAMPLES / "flower_app", server.path / "digits")
        world.approve(server.path / "digits")
        number = control.start(server, server.path / "digits", {})

        assert wait_for(lambda: control.ended(server, number), 600, "the example to finish") == "completed"
        decisions = [[entry["decision"] for entry in world.log(name)] for name in server.silos]
        assert [len(mine) for mine in decisions] == [3, 3, 3]
        assert all(mine[0] == "joined" for mine in decisions)

        world.approve(server.path / "app")
        for process in world.nodes.values():  # each looks at its fingerprint when a run begins
            assert process.running()
        found = {f.what: f for f in examine(world.place, exchange=True)}
        assert all(f.ok for f in found.values()), [f for f in found.values() if not f.ok]
        for k, examples in enumerate((20, 27, 34)):
            assert found[f"silo-{k} answers"].seen.startswith(f"{examples} examples")
            assert found[f"silo-{k}'s clock"].ok
    finally:
        world.stop()


def test_keys_are_removed_rotated_and_certificates_renewed(tmp_path):
    place = tmp_path / "d"
    feduca("deploy", "init", str(place), "--silos", "2", "--address", "10.0.0.5:9000", "--bind", "10.0.0.5")
    server, silo = folders.read_server(place), place / "silos" / "silo-0"
    assert (server.local, server.control) == (("10.0.0.5", 9000), 9001)
    before = Keys(server.path / "keys").names()
    private = (silo / "key").read_bytes()
    assert feduca("deploy", "rotate", str(place), "silo-0").exit_code == 0
    after = Keys(server.path / "keys").names()
    assert (silo / "key").read_bytes() != private
    assert sorted(after.values()) == ["silo-0", "silo-1"]
    assert len(before.keys() & after.keys()) == 1
    assert "copy" in feduca("deploy", "rotate", str(silo)).output  # at the silo: the public key is all that travels
    assert feduca("deploy", "remove", str(place), "silo-1").exit_code == 0
    assert list(Keys(server.path / "keys").names().values()) == ["silo-0"]
    with pytest.raises(InputError, match="has no key of silo 'silo-1'; it has silo-0"):
        feduca("deploy", "remove", str(place), "silo-1")
    with pytest.raises(InputError, match="is no silo's folder; name the silo, too"):
        feduca("deploy", "rotate", str(place))

    old = certificates.read(server.path / "server.crt")
    assert feduca("deploy", "renew", str(place), "--host", "fed.example.org").exit_code == 0
    new = certificates.read(server.path / "server.crt")
    assert set(certificates.hosts_of(new)) == {*certificates.hosts_of(old), "fed.example.org"}
    assert certificates.signed_by(new, certificates.read(silo / "ca.crt"))  # silos need nothing new
    assert new.serial_number != old.serial_number
    shutil.rmtree(place / "ca")
    with pytest.raises(InputError, match=r"ca\.key is not there; renew where"):
        feduca("deploy", "renew", str(place))


def test_an_app_is_approved_by_its_difference(tmp_path):
    """Also what a terminal would obey, and a reader would not see, is shown."""
    from feduca.flower import approval

    place = tmp_path / "d"
    feduca("deploy", "init", str(place), "--silos", "1")
    silo, code = place / "silos" / "silo-0", place / "server" / "app"
    good = folders.read_silo(silo).app
    assert approval.judge(silo, approval.bundle(code))
    assert approval.bundle(code) == approval.bundle(code)
    with pytest.raises(InputError, match="no app waits for approval"):
        feduca("deploy", "approve", str(silo))
    with (code / "deployed.py").open("a", encoding="utf-8") as file:
        file.write("# \x1b[2Jnothing to see \u202e\n")
    changed = approval.bundle(code)
    assert not approval.judge(silo, changed)
    answer = CliRunner().invoke(app, ["deploy", "approve", str(silo)], input="n\n")
    assert answer.exit_code != 0
    assert "+# \\x1b[2Jnothing to see \\u202e" in answer.output
    assert "\x1b[2J" not in answer.output
    assert folders.read_silo(silo).app == good
    assert feduca("deploy", "approve", str(silo), "--yes").exit_code == 0
    assert folders.read_silo(silo).app == approval.fingerprint(changed)
    assert approval.judge(silo, changed)
    # Nor is a change of what ends a line nothing: behind a form feed a comment goes on, behind a line feed it does not.
    for comment in ("# \x0cimport os", "# \nimport os"):
        (code / "comment.py").write_text(comment)
        shown = approval.difference(silo, approval.bundle(code))
        assert ("+# \\x0cimport os" if "\x0c" in comment else "+import os") in shown
        approval.approve(silo, approval.bundle(code))
    (code / "numpy.py").touch()  # not even a file of no length
    assert "+++ proposed/numpy.py" in approval.difference(silo, approval.bundle(code))
    text = (silo / "silo.toml").read_text()
    (silo / "silo.toml").write_text("\n".join(line for line in text.splitlines() if not line.startswith("app")))
    assert not approval.judge(silo, changed)  # nothing is approved where nothing is said


def test_a_section_that_nobody_reads_is_refused(tmp_path):
    feduca("deploy", "init", str(tmp_path / "d"), "--silos", "1")
    path = tmp_path / "d" / "silos" / "silo-0" / "silo.toml"
    path.write_text(path.read_text() + '\n[confg]\ndata = "/srv/north.csv"\n')
    with pytest.raises(InputError, match="has an entry or section 'confg' that is not known; it takes name, superlink"):
        folders.read_silo(path.parent)
    for line, words in (
        ('folder = "/srv"', "folder = '/srv', which feduca itself tells the app"),
        ("data = [1, 2]", r"'data' = \[1, 2\]; write a number"),
        ("data = '/srv/\"x\".csv'", "a text without double quotes"),
        ('"my data" = "x"', "'my data' = 'x'"),
    ):
        feduca("deploy", "init", str(tmp_path / line[:5]), "--silos", "1")
        path = tmp_path / line[:5] / "silos" / "silo-0" / "silo.toml"
        path.write_text(f"{path.read_text()}{line}\n")
        with pytest.raises(InputError, match=words):
            folders.read_silo(path.parent)
        shutil.rmtree(tmp_path / line[:5])
    with pytest.raises(InputError, match="bind is 'eth0'; write the IP address of one interface"):
        feduca("deploy", "init", str(tmp_path / "e"), "--silos", "1", "--bind", "eth0")


def test_a_taken_port_is_one_line_for_the_server_and_no_matter_for_a_silo(tmp_path, caplog):
    import socket

    port = free_port()
    feduca("deploy", "init", str(tmp_path / "d"), "--silos", "1", "--address", f"127.0.0.1:{port}")
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        with pytest.raises(RunError, match=rf"127.0.0.1:{port} cannot be listened on .*; end the program"):
            deploy.start_superlink(folders.read_server(tmp_path / "d"))
        silo = replace(folders.read_silo(tmp_path / "d" / "silos" / "silo-0"), port=port)
        process = deploy.start_silo(silo)
        process.kill()
        assert str(port) not in process.command
        assert "is in use; the SuperNode of silo-0 takes" in caplog.text


def test_logs_have_times_no_colours_and_an_end(tmp_path, monkeypatch):
    from feduca.flower import logs

    monkeypatch.setattr(logs, "BYTES", 400)
    code = "for k in range(100): print('\\x1b[92mINFO\\x1b[0m :      line', k)"
    process = Process([sys.executable, "-c", code], env=os.environ, cwd=tmp_path, log_file=tmp_path / "x.log")
    process.wait(60)
    process.stop()
    files = sorted(tmp_path.glob("x.log*"))
    assert len(files) == 1 + logs.OLDER
    text = (tmp_path / "x.log").read_text()
    assert text.splitlines()[-1].endswith("Z INFO :      line 99")
    assert "\x1b" not in text
    for file in files:
        assert file.stat().st_mode & 0o077 == 0
        assert file.stat().st_size <= 400


@pytest.mark.parametrize("which", ["example", "deployment"])
def test_apps_install_under_flowers_own_dependency_installation(tmp_path, which):
    """The command that Flower gives to uv; nothing has to be fetched, since feduca is there wherever Flower is."""
    from importlib.util import find_spec

    if find_spec("uv") is None:
        pytest.skip("uv is not installed")
    if which == "example":
        shutil.copytree(EXAMPLES / "flower_app", tmp_path / "app")
    else:
        feduca("deploy", "init", str(tmp_path / "d"), "--silos", "1")
        shutil.copytree(tmp_path / "d" / "server" / "app", tmp_path / "app")
    command = ["uv", "sync", "--offline", "--no-install-project", "--no-install-package", "flwr", "--inexact"]
    done = subprocess.run(
        [sys.executable, "-m", *command, "--python", sys.executable],
        cwd=tmp_path / "app", env={**os.environ, "UV_PROJECT_ENVIRONMENT": str(tmp_path / "env")},
        capture_output=True, text=True, encoding="utf-8",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_who_fails_again_and_again_is_looked_at(tmp_path):
    stop, asked = threading.Event(), []

    def diagnose():
        asked.append(True)
        stop.set()

    def start():
        return Process([sys.executable, "-c", "raise SystemExit(3)"], env=os.environ, cwd=tmp_path, log_file=None)

    supervise(start, stop=stop, name="test", first_s=0.01, longest_s=0.02, diagnose=diagnose)
    assert asked == [True]


def test_a_silos_check_reads_its_data(tmp_path):
    app = EXAMPLES / "hospitals" / "app"
    place = tmp_path / "d"
    feduca(
        "deploy", "init", str(place), str(EXAMPLES / "hospitals" / "recipe.toml"), "--app", str(app),
        "--silos", "north", "--config", f"north.data={tmp_path}/north.csv",
    )  # fmt: skip
    silo = place / "silos" / "north"
    found = {f.what: f for f in examine(silo)}
    assert not found["north's data"].ok
    assert "north.csv" in found["north's data"].seen
    assert "silo.toml" in found["north's data"].remedy
    assert not (silo / "state" / "log.jsonl").exists()  # a rehearsal leaves no trace


def test_a_silos_check_finds_an_app_that_cannot_hide_examples(tmp_path):
    world = World(tmp_path, 1)
    private = {
        "privacy.dp": "records",
        "privacy.epsilon": 3.0,
        "participation.rule": "always",
        "mechanism.name": "fedavg",
    }
    world.recipe(private)
    found = {f.what: f for f in examine(world.place / "silos" / "silo-0")}
    assert not found["silo-0's data"].ok
    assert "the app's NumpyTask has no method `train_private`" in found["silo-0's data"].seen
