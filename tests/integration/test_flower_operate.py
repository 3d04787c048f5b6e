"""What the server's operator sees of a deployment, with real processes: watched while silos come late, hang and leave."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import ClassVar

import pytest
import tomlkit
from prometheus_client.parser import text_string_to_metric_families

from feduca.flower import deploy
from feduca.flower.failures import POLICY
from feduca.flower.operate.settings import ABSENT as SILENT
from feduca.flower.operate.settings import BACK, DIED, LEFT, WAITS
from feduca.flower.processes import Process, descendants, environment, free_port
from feduca.report.dashboard.server import Source
from feduca.types import ABSENT, REFUSED
from feduca.types import LEFT as GONE
from flower_world import World, reasons, statuses, wait_for

pytestmark = pytest.mark.slow


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def metrics(port: int) -> dict[str, float]:
    """Every sample as `name{label,label}`: a scrape as Prometheus reads it."""
    status, text = get(port, "/metrics")
    assert status == 200, text
    return {
        f"{sample.name}{{{','.join(sample.labels.values())}}}" if sample.labels else sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def told(path: Path) -> list[dict]:
    """What the hook was told so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def serve(world: World, *flags: str) -> Process:
    """As a service manager starts the server."""
    command = [sys.executable, "-m", "feduca", "deploy", "superlink", *flags, str(world.server.path)]
    log = world.folder / "serve.log"
    world.superlink = Process(command, env=environment(world.folder / "home"), cwd=world.folder, log_file=log)
    deploy.wait_until_reachable(world.server, world.superlink)
    return world.superlink


def watched(world: World, **alert) -> tuple[int, Path]:
    """Metrics and a hook in server.toml; the port, and where the hook writes what it is told."""
    port, heard = free_port(), world.folder / "heard.jsonl"
    hook = world.folder / "hook.py"
    hook.write_text(f"import sys; open({str(heard)!r}, 'a').write(sys.stdin.read() + chr(10))")
    path = world.place / "server" / "server.toml"
    words = tomlkit.parse(path.read_text())
    words["metrics"] = f"127.0.0.1:{port}"
    words["alert"] = {"command": f"{sys.executable} {hook}", "absent-rounds": 2, **alert}
    path.write_text(tomlkit.dumps(words))
    return port, heard


class Answers500(http.server.BaseHTTPRequestHandler):
    asked: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        self.asked.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(500)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return None


def test_an_operator_sees_who_comes_leaves_hangs_and_dies(tmp_path):
    """A late joiner, a silo that is stopped (SIGSTOP), one that leaves, the app killed; a hook beside a broken web hook."""
    world = World(tmp_path, 4)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers500)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port, heard = watched(world, webhook=f"http://127.0.0.1:{server.server_port}/alerts")
    path = world.recipe({"rounds": 16, "task.clients": 4}, round_timeout=20.0, silos=3, patience=1)
    try:
        serve(world, "--run")
        status, words = get(port, "/health")
        assert (status, "no run has begun" in words or "waits for silos" in words) in ((503, True), (200, True))
        for name in ("silo-0", "silo-1", "silo-2"):
            world.start_silo(name)
        wait_for(lambda: (path / "clients.jsonl").is_file() and statuses(path), 400, "round 1")
        found = wait_for(lambda: (f := metrics(port)).get("feduca_rounds_total") and f, 20, "its figures")
        assert get(port, "/health")[0] == 200
        assert found["feduca_rounds_total"] >= 1
        assert found["feduca_rounds_planned"] == 16
        assert found["feduca_silos{joined}"] == 3
        assert found["feduca_silo{silo-1,joined}"] == 1
        assert found["feduca_healthy"] == found["feduca_app_running"] == 1
        assert found["feduca_model_bytes_total{up}"] > 0
        assert 0 < found["feduca_accuracy"] <= 1
        assert found["feduca_phase_seconds_total{exchange}"] > 0
        assert abs(time.time() - found["feduca_last_round_timestamp_seconds"]) < 300

        world.start_silo("silo-3")  # the late joiner
        stopped = [(world.nodes["silo-1"].pid), *(pid for pid, _ in descendants(world.nodes["silo-1"].pid))]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: any(e["event"] == SILENT for e in told(heard)), 400, "word of the silo that hangs")
        found = wait_for(lambda: (f := metrics(port))["feduca_silos{absent}"] and f, 20, "a scrape during a round")
        assert found["feduca_silo_absent_rounds{silo-1}"] >= 2
        for pid in stopped:
            with_pid(pid, signal.SIGCONT)
        (world.place / "silos" / "silo-0" / "state" / "leave").touch()
        wait_for(lambda: any(e["event"] == LEFT for e in told(heard)), 400, "word of the silo that leaves")
        wait_for(lambda: len(statuses(path)[-1]) == 4, 400, "the late joiner to take part")

        # The page is live all along, with four silos and who is gone by name.
        page = json.loads(Source([path]).current("")[1] or b"")
        said = json.dumps(page)
        assert "error" not in page
        assert "silo-3" in said
        assert "silo-0 (round" in said

        # All take no part for a while: the run waits, says so once, and no round is lost.
        vetoes = [world.place / "silos" / f"silo-{k}" / "state" / "veto" for k in (1, 2, 3)]
        for veto in vetoes:
            veto.write_text("closed for the night")
        wait_for(
            lambda: "it waits: every silo declines by its policy" in get(port, "/health")[1], 300, "the run to wait"
        )
        wait_for(lambda: any(e["event"] == WAITS for e in told(heard)), 60, "word of that")
        done = len(statuses(path))
        assert get(port, "/health")[0] == 200
        assert metrics(port)["feduca_waiting"] == 1
        assert "It waits, and goes on by itself: every silo declines by its policy" in json.dumps(
            json.loads(Source([path]).current("")[1] or b"")
        )
        time.sleep(20)  # longer than a round takes
        assert len(statuses(path)) == done
        vetoes[0].unlink()
        wait_for(lambda: len(statuses(path)) > done, 400, "the round to be asked again")
        assert statuses(path)[done][1] != REFUSED
        for veto in vetoes[1:]:
            veto.unlink()

        app = json.loads((world.server.path / deploy.RUNNING).read_text())["pid"]
        os.kill(app, signal.SIGKILL)
        wait_for(lambda: any(e["event"] == DIED for e in told(heard)), 120, "word of the app's death")
        wait_for(lambda: get(port, "/health")[1].endswith("finished\n"), 900, "the run to be gone on with and finished")
    finally:
        server.shutdown()
        world.stop()
        server.server_close()
    seen = statuses(path)
    assert len(seen) == 16
    assert any(row[1] == ABSENT for row in seen)
    assert [row[0] for row in seen][-1] == GONE
    others = [{why for why, word in zip(whys, row) if word != GONE} for whys, row in zip(reasons(path), seen)]
    assert {POLICY} not in others  # no round was lost to it
    assert [e["event"] for e in told(heard)].count(WAITS) == 1
    # The first of each: others are silent, too, where the app dies with a message half sent, and Flower waits for the rest.
    silos = {e["event"]: e["silo"] for e in reversed(told(heard))}
    assert silos[SILENT] == "silo-1"
    assert silos[LEFT] == "silo-0"
    assert sum(e["event"] == LEFT for e in told(heard)) == 1
    for event in told(heard):  # decisions and names; nothing that a silo measured
        assert set(event) == {"time", "event", "run", "round", "silo", "text"}
        assert str(tmp_path) not in str(event)
    assert [json.loads(body)["event"] for body in Answers500.asked] == [e["event"] for e in told(heard)]

    lines = [json.loads(line) for line in (world.server.path / "log.jsonl").read_text().splitlines()]
    assert {line["from"] for line in lines} == {"supervisor", "front", "app"}
    assert all({"time", "level", "from", "event", "text"} <= set(line) for line in lines)
    assert {line["round"] for line in lines if line["event"] == "round"} == set(range(1, 17))
    assert any(line["event"] == "absent" and line["silo"] == "silo-1" for line in lines)
    assert any(line["event"] == GONE and line["silo"] == "silo-0" for line in lines)
    assert any(line["event"] == "resumed" for line in lines)
    assert sum(line["event"] == "alert-failed" for line in lines) == 1  # however often it answers 500
    assert (world.server.path / "log.jsonl").stat().st_mode & 0o077 == 0


def with_pid(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def test_health_says_what_does_not_answer(tmp_path):
    """A hook that hangs delays no round; then SuperLink and front are stopped one after the other."""
    world = World(tmp_path, 2)
    port, _ = watched(world, command="sleep 600", timeout=300.0)
    path = world.recipe({"rounds": 400, "task.clients": 2}, round_timeout=60.0, silos=2, patience=1)
    try:
        process = serve(world)
        for name in ("silo-0", "silo-1"):
            world.start_silo(name)
        world.wait_online()
        assert get(port, "/health") == (503, "no run has begun; start server/run.sh\n")
        deploy.submit(world.server)
        wait_for(lambda: (path / "clients.jsonl").is_file() and statuses(path), 400, "round 1")
        (world.place / "silos" / "silo-0" / "state" / "leave").touch()
        wait_for(lambda: any(GONE in row for row in statuses(path)), 300, "silo-0 to leave")
        sleeping = wait_for(lambda: [p for p, _ in descendants(process.pid) if b"sleep" in command(p)], 60, "the hook")
        done = len(statuses(path))
        wait_for(lambda: len(statuses(path)) >= done + 2, 200, "two rounds beside a hook that hangs")
        assert command(sleeping[0])
        assert get(port, "/health")[0] == 200

        inner = {kind: [p for p, _ in descendants(process.pid) if kind in command(p)] for kind in (b"launch", b"front")}
        front = [pid for pid in inner[b"front"] if b"launch" not in command(pid)]
        for pids, words in ((inner[b"launch"], "the SuperLink does not answer"), (front, "the front does not answer")):
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            try:
                _, said = wait_for(lambda: (a := get(port, "/health"))[0] == 503 and a, 60, words)
                assert words in said
                assert said.count("\n") == 1
            finally:
                for pid in pids:
                    with_pid(pid, signal.SIGCONT)
            wait_for(lambda: get(port, "/health")[0] == 200, 60, "it to answer again")
    finally:
        began = time.monotonic()
        world.stop()
    assert time.monotonic() - began < 60  # nor does the hook that hangs hold up the end
    wait_for(lambda: not command(sleeping[0]), 10, "the hook to be ended, too")
    assert BACK not in (tmp_path / "serve.log").read_text()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 200 kB, at a path to be named."""
    mounted = []

    def mount(path: Path) -> None:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k,mode=700", "tmpfs", path], capture_output=True)
        if done.returncode:
            pytest.skip("this user cannot mount a file system to fill")
        mounted.append(path)

    yield mount
    for path in mounted:
        subprocess.run(["umount", "--lazy", path], check=True)


def test_a_full_disk_at_a_silo_is_an_absence_and_nothing_worse(tmp_path, small_disk):
    """The round goes on without it; when there is room again it goes on from what it remembers, its log whole."""
    world = World(tmp_path, 2)
    state = world.place / "silos" / "silo-1" / "state"
    small_disk(state)
    path = world.recipe({"rounds": 12, "task.clients": 2}, round_timeout=90.0, silos=2)
    try:
        world.start()
        world.wait_online()
        number = deploy.submit(world.server)
        wait_for(lambda: (path / "clients.jsonl").is_file() and statuses(path), 400, "round 1")
        filler = state / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(b"x" * 512):
                pass
        wait_for(lambda: [row[1] for row in statuses(path)].count(ABSENT) >= 2, 300, "two rounds without it")
        assert sorted(p.name for p in (state / "runs").rglob("*.part*")) == []  # nor is the disk filled further
        filler.unlink()
        deploy.follow(world.server, number, deploy.run_directory(world.server), seconds=900)
    finally:
        world.stop()
    seen = statuses(path)
    assert all(row[0] in ("joined", "declined") for row in seen)
    assert seen[-1][1] in ("joined", "declined")
    why = [row[1] for row, status in zip(reasons(path), seen) if status[1] == ABSENT]
    assert why
    assert all("OSError, line" in reason for reason in why), why
    assert all(str(tmp_path) not in reason for reason in why)
    mine = [entry for entry in world.log("silo-1") if entry["decision"] in ("joined", "declined")]
    assert all(entry["accuracy"]["own"] is not None for entry in mine[1:])  # it never had to start over


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
