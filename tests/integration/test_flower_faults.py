"""What can go wrong on real machines, with real processes: the federation finishes and the record says what happened."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from feduca.flower import certificates, control, deploy
from feduca.flower import folder as folders
from feduca.flower.processes import descendants, environment, free_port
from feduca.types import ABSENT, DECLINED, JOINED, REFUSED
from flower_world import World, events, reasons, statuses, wait_for

pytestmark = pytest.mark.slow

ANSWERED = (JOINED, DECLINED)


def told(world):
    """The server's log."""
    return [json.loads(line) for line in (world.server.path / "log.jsonl").read_text().splitlines()]


@pytest.fixture
def world(tmp_path, request):
    made = World(tmp_path, getattr(request, "param", 3))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.mark.parametrize("world", [4], indirect=True)
def test_silos_that_misbehave_and_strangers(world):
    """Wrong shape, NaN, an old round, another's name, an exception, silence; an impostor, an unregistered key, no CA."""
    world.stop_silo("silo-3")
    impostor = world.place / "silos" / "silo-3" / "silo.toml"
    impostor.write_text(impostor.read_text().replace('name = "silo-3"', 'name = "silo-0"'))
    world.start_silo("silo-3")
    what = {"2": "shape", "3": "nan", "4": "old round", "5": "another's name", "6": "crash", "7": "hang"}
    world.mischief("silo-2", what)
    path = world.recipe({"rounds": 8}, round_timeout=90.0, patience=1, silos=3)
    number = deploy.submit(world.server)

    # While it runs: a silo whose key nobody registered, and one that trusts another authority.
    for name in ("unregistered", "without-ca"):
        strange = world.place / "silos" / name
        shutil.copytree(
            world.place / "silos" / "silo-0", strange, ignore=shutil.ignore_patterns("state", "flwr", "*.log")
        )
        text = (strange / "silo.toml").read_text()
        port = folders.read_silo(strange).port
        (strange / "silo.toml").write_text(text.replace("silo-0", name).replace(str(port), str(free_port())))
        certificates.make_silo_key(strange) if name == "unregistered" else certificates.make_ca(strange)
        world.start_silo(name)
    for name, words in (("unregistered", "does not know this silo's key"), ("without-ca", "certificate verify failed")):
        log = world.place / "silos" / name / "state" / "supernode.log"
        wait_for(lambda log=log, words=words: words in log.read_text().lower(), 300, f"{name} to be refused")
        world.stop_silo(name)
    assert set(control.registered(world.server)) == {f"silo-{k}" for k in range(4)}
    away = [line["text"] for line in told(world) if line["event"] == "turned-away" and line["from"] == "front"]
    key = subprocess.run(
        ["ssh-keygen", "-lf", str(world.place / "silos" / "unregistered" / "key.pub")], capture_output=True, text=True
    )
    if key.returncode == 0:
        assert sum(key.stdout.split()[1] in text for text in away) == 1
    assert sum("an unknown key (SHA256:" in text for text in away) == 1  # not once a try
    assert sum("127.0.0.1 was turned away by itself: it does not believe" in text for text in away) == 1

    deploy.follow(world.server, number, deploy.run_directory(world.server), seconds=1200)
    seen, why = statuses(path), reasons(path)
    assert [row[2] for row in seen[1:5]] == [REFUSED] * 4
    wanted = ["asked was one of 4 floats", "not finite", "round is 3, expected 4", "'silo-0', asked was 'silo-2'"]
    for text, row in zip(wanted, why[1:5]):
        assert text in row[2]
        assert text in events(path)
    assert seen[5][2] == ABSENT
    assert "RuntimeError, line" in why[5][2]
    for file in path.iterdir():  # an error's text may hold anything a silo knows; it stays there
        assert not file.is_file() or "disk is full" not in file.read_text()
    assert "disk is full" in str(world.log("silo-2"))
    assert seen[6][2] == ABSENT
    assert "no answer within 90 s" in why[6][2]
    assert "it calls itself 'silo-0' and holds the key of 'silo-3'" in events(path)
    named = [line for line in told(world) if line["event"] == "turned-away" and line["from"] == "app"]
    assert [line["silo"] for line in named] == ["silo-3"]  # by the key it holds, and once
    assert all(len(row) == 3 for row in seen)
    assert all(word in ANSWERED for row in seen for word in row[:2])  # nobody else was held up
    assert seen[-1][2] in ANSWERED  # it is back once it answers again
    clients = [json.loads(line) for line in (path / "clients.jsonl").read_text().splitlines()]
    assert [row["alpha"][2] for row in clients[5:7]] == [0, 0]  # silent for longer than the server's patience of 1
    assert clients[-1]["alpha"][2] > 0
    for before, after in ((4, 5), (5, 6)):  # absent: its curve is the last one known
        assert clients[before]["zeta"][2] == clients[after]["zeta"][2]
    assert all(np.isfinite(row["alpha"]).all() for row in clients)


def test_a_supernode_killed_mid_round_comes_back_with_its_memory(world):
    state = world.mischief("silo-1", {"2": "slow"})
    path = world.recipe({"rounds": 9}, round_timeout=90.0)
    number = deploy.submit(world.server)
    wait_for(lambda: (state / "busy-2").exists(), 300, "silo-1 to train in round 2")
    world.mischief("silo-1", {})
    world.nodes["silo-1"].kill()
    deploy.follow(world.server, number, deploy.run_directory(world.server), seconds=1200)
    seen = [row[1] for row in statuses(path)]
    assert seen[0] == JOINED
    assert seen[1] == ABSENT
    assert seen[-1] in ANSWERED, seen
    # Back, it went on from the model it had: nobody is ever asked to start over.
    mine = [entry for entry in world.log("silo-1") if entry["decision"] in ANSWERED]
    assert mine[0]["reason"] == "no model of its own yet"
    assert all(entry["accuracy"]["own"] is not None for entry in mine[1:])
    assert len(mine) == sum(word in ANSWERED for word in seen)


def test_an_app_and_a_template_killed_mid_round(world):
    """The process that works on a message, and the one that such processes are forked from; beside a silo that forks none."""
    world.stop_silo("silo-0")
    settings = world.place / "silos" / "silo-0" / "silo.toml"
    settings.write_text(f"fresh = true\n{settings.read_text()}")
    world.start_silo("silo-0")
    states = {name: world.mischief(name, {"2": "hang"}) for name in ("silo-1", "silo-2")}
    path = world.recipe({"rounds": 9}, round_timeout=90.0)
    number = deploy.submit(world.server)
    for name, state in states.items():
        wait_for((state / "busy-2").exists, 300, f"{name} to train in round 2")
        world.mischief(name, {})
    app, other = (int((state / "busy-2").read_text()) for state in states.values())
    mine = {pid for pid, _ in descendants(world.nodes["silo-2"].pid)}
    template = int(Path(f"/proc/{other}/stat").read_text().rpartition(")")[2].split()[1])
    assert mine == {template, other}
    os.kill(app, signal.SIGKILL)
    os.kill(template, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{other}").exists(), 10, "the app to end with what it was forked from")
    deploy.follow(world.server, number, deploy.run_directory(world.server), seconds=1200)
    seen = statuses(path)
    assert all(row[0] in ANSWERED for row in seen)  # nobody else was held up
    for place in (1, 2):
        assert [row[place] for row in seen[:2]] == [JOINED, ABSENT]
        assert seen[-1][place] in ANSWERED, seen
        own = [entry for entry in world.log(f"silo-{place}") if entry["decision"] in ANSWERED]
        assert all(entry["accuracy"]["own"] is not None for entry in own[1:])  # back with its memory


def test_server_app_and_superlink_killed(world, monkeypatch):
    """Both in one run; the finished run equals one that was never disturbed."""
    sys.path.append(str(Path(__file__).parents[1] / "parity"))
    from test_parity import METHODS, check_same

    path = world.recipe(METHODS["feduca"])
    state = world.mischief("silo-0", {"2": "slow", "4": "slow"})
    deploy.submit(world.server)
    wait_for(lambda: (state / "busy-2").exists(), 300, "round 2")
    world.kill_server_app()
    number = deploy.submit(world.server)  # goes on after round 1
    wait_for(lambda: (state / "busy-4").exists(), 300, "round 4")
    world.superlink.kill()
    assert len(statuses(path)) == 3
    world.start_superlink()

    done = subprocess.run(
        [sys.executable, "-m", "feduca", "resume", str(path), "--json"],
        env=environment(world.folder / "home"),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert row["rounds"] == 6
    assert row["run_dir"] == str(path)
    check_same(METHODS["feduca"], path)
    assert events(path).count("going on after round") == 2
    assert number
