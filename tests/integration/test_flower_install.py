"""What `deploy init --for` and `--bundle` write starts the thing: as processes on this machine, from folders as copied."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from feduca.cli.main import app
from feduca.errors import RunError
from feduca.flower import control, deploy, install
from feduca.flower import folder as folders
from feduca.flower.install.places import PLACE, PROGRAM
from feduca.flower.processes import Process, alive, descendants, free_ports
from flower_world import statuses, wait_for

pytestmark = pytest.mark.slow

BARE = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}  # of a machine that has nothing of ours
NOTHING = ("unshare", "--net")  # no network at all, not even this machine's


def init(place: Path, out: Path, *more: str) -> folders.ServerFolder:
    """Two silos of the quickstart's data, three rounds, on this machine's ports."""
    address, control_, metrics, *ports = free_ports(5)
    arguments = ("--silos", "2", "--rounds", "3", "--out", str(out), "--set", "local.epochs=1")
    where = ("--address", f"127.0.0.1:{address}", "--metrics", f"127.0.0.1:{metrics}")
    done = CliRunner().invoke(app, ["deploy", "init", str(place), *arguments, *where, *more], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    server = place / "server" / "server.toml"
    server.write_text(server.read_text().replace(f"control = {address + 1}", f"control = {control_}"))
    for path, port in zip(sorted((place / "silos").iterdir()), ports):
        silo = path / "silo.toml"
        silo.write_text(silo.read_text().replace(f"port = {folders.read_silo(path).port}", f"port = {port}"))
    return folders.read_server(place)


def unit(path: Path, place: Path) -> tuple[list[str], dict[str, str]]:
    """The command and variables of a unit, its places being here."""
    text = path.read_text().replace(PROGRAM, str(Path(sys.executable).with_name("feduca")))
    lines = text.replace(f"{PLACE}/", f"{place}/").splitlines()
    (command,) = [line.removeprefix("ExecStart=") for line in lines if line.startswith("ExecStart=")]
    variables = [line.removeprefix("Environment=").split("=", 1) for line in lines if line.startswith("Environment=")]
    return shlex.split(command), dict(variables)


def confined(written: Path) -> list[str]:
    """What ProtectSystem=strict, StateDirectory and PrivateTmp do, where this user may do it."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        return []
    mounts = (
        'mount --make-rprivate /; mount --bind "$0" "$0"; mount -o remount,bind,ro /; mount -t tmpfs tmpfs /var/tmp'
    )
    return ["unshare", "--mount", "sh", "-ec", f'{mounts}; exec "$@"', str(written)]


def test_units_start_a_federation_that_runs_to_its_end(tmp_path):
    """All of the disk but the unit's StateDirectory read-only to them; a compose file's commands are the same."""
    server = init(tmp_path / "d", Path("runs"), "--for", "systemd")
    there = tmp_path / "machine"  # what /var/lib/feduca is elsewhere
    shutil.copytree(server.path, there / "server")
    for path in (tmp_path / "d" / "silos").iterdir():
        shutil.copytree(path, there / path.name)
    started: list[Process] = []
    path = deploy.run_directory(folders.read_server(there / "server")).path
    try:
        for place in (there / "server", there / "silo-0", there / "silo-1"):
            (file,) = place.glob("*.service")
            command, variables = unit(file, there)
            assert all(Path(value).is_relative_to(there) for name, value in variables.items() if "HOME" in name)
            log = tmp_path / f"{place.name}.log"
            env = {**BARE, **variables, "TMPDIR": "/var/tmp"}
            written = place if place.name == "server" else place / "state"
            assert f"StateDirectory=feduca/{written.relative_to(there)}\n" in file.read_text()
            started.append(Process([*confined(written), *command], env=env, cwd=place, log_file=log))
        wait_for(lambda: deploy.state_of(path) == "finished" if path.is_dir() else None, 1500, "three rounds")
        assert all(process.running() for process in started)  # the next recipe may come
        assert len(statuses(path)) == 3
        assert all(word in ("joined", "declined") for row in statuses(path) for word in row)
    finally:
        family = [one for process in started for one in descendants(process.pid)]
        for process in started:
            process.stop(30)
    assert [process.returncode for process in started] == [0, 0, 0]  # no failure, for a service manager
    assert alive(family) == []
    # The same programs with the same arguments in containers.
    of_server, of_silo = install.TARGETS["compose"]
    mine = [of_server(server), *(of_silo(folders.read_silo(p)) for p in sorted((tmp_path / "d/silos").iterdir()))]
    for process, files in zip(started, mine):
        command = yaml.safe_load(files["compose.yaml"])["services"]["feduca"]["command"]
        assert command[:-1] == process.command[-len(command) : -1]


def offline(*command: object, **more) -> subprocess.CompletedProcess:
    """With no network at all, where this user may take it away."""
    prefix = NOTHING if subprocess.run([*NOTHING, "true"], capture_output=True).returncode == 0 else ()
    return subprocess.run([*prefix, *map(str, command)], capture_output=True, text=True, **more)


def three_commands() -> list[str]:
    """What docs/silo.md says, word for word."""
    page = (Path(__file__).parents[2] / "docs" / "silo.md").read_text()
    return page.partition("in three commands")[2].partition("```bash\n")[2].partition("```")[0].splitlines()


def test_a_silo_is_connected_in_three_commands_from_an_empty_machine(tmp_path):
    """copy, install (no network, no index), start: as a page says it; only where things are is another place here."""
    commands = [line.replace("north", "silo-0") for line in three_commands()]
    assert len(commands) == 3
    copied = commands[0].replace("scp -rp init.example.org:deployment", f"cp -rp {tmp_path}/d")
    assert copied != commands[0]
    try:
        server = init(tmp_path / "d", tmp_path / "runs", "--bundle", "full")
    except RunError as error:
        pytest.skip(f"no index gives the wheels: {error}")
    superlink = deploy.start_superlink(server)
    silo = None
    try:
        deploy.wait_until_reachable(server, superlink)
        machine = tmp_path / "machine"
        machine.mkdir()
        env = {**BARE, "PYTHON": sys._base_executable, "HOME": str(machine)}  # type: ignore[attr-defined]

        subprocess.run(copied.split(), check=True, cwd=machine)
        done = offline(*commands[1].split(), env=env, cwd=machine)
        assert done.returncode == 0, done.stderr
        silo = Process(commands[2].split(), env=env, cwd=machine, log_file=tmp_path / "silo.log")

        wait_for(lambda: control.registered(server).get("silo-0") == "online", 300, "silo-0 to be connected")
        running = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid, _ in descendants(silo.pid)]
        assert any(str(machine).encode() in command.split(b"\0")[0] for command in running)  # its own, not this one's
    finally:
        if silo is not None:
            silo.stop()
        superlink.stop()
