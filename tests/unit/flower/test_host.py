"""Many SuperNodes on one machine from one process: each in its own folder, started again when it ends, none left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from feduca.flower import folder as folders
from feduca.flower.processes import alive, descendants
from feduca.recipes.schema import load
from flower_world import wait_for

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="SuperNodes are forked on Linux alone")

# The host with SuperNodes that say where they are and stay, except where a file tells them to end.
DRIVER = """
import json, os, sys, time
from feduca.flower import host, launch
from feduca.flower.processes import leashed

def supernode(silo, port):
    leashed(grace=0.5)
    found = {"cwd": os.getcwd(), "home": os.environ["FLWR_HOME"], "port": port, "session": os.getsid(0), "pid": os.getpid()}
    print(json.dumps(found), flush=True)
    while not (silo.path / "end").exists():
        time.sleep(0.05)
    raise SystemExit(7)

launch.supernode = supernode
host.FIRST_S = 0.1
host.main(*sys.argv[1:])
"""


@pytest.fixture
def started(tmp_path):
    names = ["silo-0", "silo-1", "silo-2"]
    app = tmp_path / "app"
    app.mkdir()
    (app / "deployed.py").write_text("# imports nothing\n")
    folders.init(tmp_path / "d", load({}), names, app=app)
    silos = [tmp_path / "d" / "silos" / name for name in names]
    (tmp_path / "driver.py").write_text(DRIVER)
    command = [sys.executable, str(tmp_path / "driver.py"), *map(str, silos)]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=said)
    yield process, silos, tmp_path / "said"
    process.kill()
    process.communicate()


def lives(silo: Path) -> list[dict]:
    """What each SuperNode of this silo said."""
    log = silo / "state" / "supernode.log"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []


def test_each_is_a_process_of_its_own_and_comes_back(started):
    process, silos, said = started
    wait_for(lambda: all(map(lives, silos)), 60, "three SuperNodes")
    for silo in silos:
        found = lives(silo)[0]
        assert found["cwd"] == str(silo)
        assert found["home"] == str(silo / "state" / "flwr")
        assert found["port"] == folders.read_silo(silo).port
        assert found["session"] == found["pid"] != process.pid
        assert (silo / "state" / "supernode.log").stat().st_mode & 0o077 == 0
    os.kill(lives(silos[1])[0]["pid"], signal.SIGKILL)
    wait_for(lambda: len(lives(silos[1])) == 2, 30, "the one that was killed")
    (silos[2] / "end").touch()
    wait_for(lambda: len(lives(silos[2])) >= 3, 30, "the one that ends again and again")
    assert [len(lives(silo)) for silo in silos[:2]] == [1, 2]
    assert "the SuperNode of silo-1 ended with code -9; starting it again in 0.1 s" in said.read_text()
    assert "the SuperNode of silo-2 ended with code 7; starting it again in 0.2 s" in said.read_text()  # patience grows


@pytest.mark.parametrize("how", ["asked", "killed", "nobody left"])
def test_none_outlives_it(started, how):
    process, silos, _ = started
    wait_for(lambda: all(map(lives, silos)), 60, "three SuperNodes")
    family = descendants(process.pid)
    assert len(family) == 3
    if how == "nobody left":
        process.stdin.close()
        process.stdin = None
    else:
        process.send_signal(signal.SIGTERM if how == "asked" else signal.SIGKILL)
    process.wait(30)
    wait_for(lambda: not alive(family), 10, "its SuperNodes to end")
