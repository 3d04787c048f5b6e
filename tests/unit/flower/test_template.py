"""The process that app processes are forked from: what it imports, what it passes on, and that none outlives the other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from feduca.errors import InputError
from feduca.flower import approval, template
from feduca.flower import folder as folders
from feduca.flower.processes import alive, descendants, started
from feduca.recipes.schema import load

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="elsewhere every message gets a new Python"
)

# A SuperNode that hands on the tokens it reads; an "app" says what it finds, and leaves something behind.
DRIVER = """
import json, os, random, sys, time
from pathlib import Path
from types import SimpleNamespace
from feduca.flower import folder, template

silo, out = folder.read_silo(Path(sys.argv[1])), Path(sys.argv[2])

def run(address, token):
    import numpy
    found = {
        "pid": os.getpid(), "template": os.getppid(), "address": address, "path": sys.path[0], "cwd": os.getcwd(),
        "left": hasattr(numpy, "left"), "noise": [numpy.random.rand(), random.random()], "stdin": os.readlink("/proc/self/fd/0"),
        "torch": "torch" in sys.modules, "csv": "csv" in sys.modules, "own": "helper" in sys.modules,
        "sockets": [str(path) for path in Path("/proc/self/fd").iterdir() if path.is_socket()],
    }
    if found["torch"]:
        found["noise"].append(float(sys.modules["torch"].rand(1)))
    numpy.left = token
    (out / f"{token}.part").write_text(json.dumps(found))
    (out / f"{token}.part").rename(out / token)
    if token.startswith("stays"):
        time.sleep(600)

template._run = run
mine = template.Template(silo, 1234)
mine.wait()
waiting = []
state = SimpleNamespace(
    get_tasks=lambda statuses: [SimpleNamespace(task_id=token) for token in waiting],
    claim_task=lambda token: waiting.remove(token) or token,
)
print("ready", flush=True)
for line in sys.stdin:
    waiting.append(line.strip())
    mine.serve(state)
"""


class Node:
    """The driver as a process of its own, for a fork needs a process without threads."""

    def __init__(self, place: Path, files: dict[str, str], **environment: str) -> None:
        app = place / "app"
        app.mkdir()
        (app / "deployed.py").write_text("# none\n")
        for name, text in files.items():
            (app / name).write_text(text)
        folders.init(place / "d", load({}), ["silo-0"], app=app)
        self.silo, self.out = place / "d" / "silos" / "silo-0", place / "out"
        self.out.mkdir()
        (place / "driver.py").write_text(DRIVER)
        command = [sys.executable, str(place / "driver.py"), str(self.silo), str(self.out)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, cwd=self.silo, env={**os.environ, **environment}, **pipes)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def ask(self, token: str) -> dict:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{token}\n")
        self.process.stdin.flush()
        until(lambda: (self.out / token).exists(), f"the answer to {token}")
        return json.loads((self.out / token).read_text())


def until(what, why: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"waited in vain for {why}"
        time.sleep(0.02)


@pytest.fixture
def node(tmp_path):
    made: list[Node] = []

    def make(files: dict[str, str] | None = None, **environment: str) -> Node:
        made.append(Node(tmp_path, files or {}, **environment))
        return made[0]

    yield make
    for one in made:
        one.process.kill()
        one.process.communicate()


def test_every_message_has_a_process_of_its_own(node):
    """Nothing of one message is left for the next: no module, no random number, no connection of the SuperNode."""
    it = node(
        {"deployed.py": "import helper, csv\nfrom torch import nn\n", "helper.py": "raise SystemExit('never run')\n"}
    )
    first, second = it.ask("one"), it.ask("two")
    assert first["pid"] != second["pid"]
    assert first["template"] == second["template"] != it.process.pid
    assert not first["left"]
    assert not second["left"]
    assert len(first["noise"]) == 3
    assert not set(first["noise"]) & set(second["noise"])
    for found in (first, second):
        assert found["address"] == "127.0.0.1:1234"
        assert found["path"] == str(Path(sys.executable).parent)  # not the silo's folder
        assert found["cwd"] == str(it.silo)
        assert found["stdin"] == os.devnull
        assert found["sockets"] == []
        assert found["torch"]
        assert found["csv"]
        assert not found["own"]  # of the app itself nothing was run


def test_an_app_without_torch_pays_for_none(node):
    assert not node({"deployed.py": "import numpy\n"}).ask("one")["torch"]


def test_what_is_imported_beforehand(tmp_path):
    app = tmp_path / "app"
    app.mkdir()
    (app / "deployed.py").write_text("import os.path, mine\nfrom . import near\nfrom sklearn import svm\n")
    (app / "broken.py").write_text("import never here\n")
    (app / "mine.py").write_text("def f():\n    import zlib\n")
    folders.init(tmp_path / "d", load({}), ["silo-0"], app=app)
    folders.init(tmp_path / "own", load({}), ["silo-0"])
    silo = tmp_path / "d" / "silos" / "silo-0"
    assert sorted(template.wanted(folders.read_silo(silo))) == ["os.path", "sklearn", "zlib"]
    assert {*template.RECIPE_APP} < {*template.wanted(folders.read_silo(tmp_path / "own" / "silos" / "silo-0"))}
    (silo / approval.APPROVED).write_bytes((silo / approval.APPROVED).read_bytes() + b"\0")  # not what was approved
    assert template.wanted(folders.read_silo(silo)) == []
    (silo / approval.APPROVED).unlink()
    assert template.wanted(folders.read_silo(silo)) == []


def test_the_template_ends_with_its_supernode(node):
    it = node()
    found = it.ask("stays")
    family = descendants(it.process.pid)
    assert {pid for pid, _ in family} == {found["pid"], found["template"]}
    it.process.kill()  # as kill -9, which lets it say nothing
    until(lambda: not alive(family), "its template and the app's process to end")


def test_a_supernode_ends_with_its_template_and_so_does_the_app(node):
    it = node()
    found = it.ask("stays")
    app = (found["pid"], started(found["pid"]))
    for number in (signal.SIGTERM, signal.SIGINT):  # a service manager tells every process; the SuperNode decides
        os.kill(found["template"], number)
    assert it.ask("two")["template"] == found["template"]
    os.kill(found["template"], signal.SIGKILL)
    until(lambda: it.process.poll() is not None, "the SuperNode to end")
    assert it.process.returncode == -signal.SIGTERM
    until(lambda: not alive([app]), "the app's process to end")


def test_an_app_that_is_killed_is_nobody_elses_matter(node):
    it = node()
    found = it.ask("stays")
    os.kill(found["pid"], signal.SIGKILL)
    until(lambda: not started(found["pid"]), "the template to notice", 5)  # no zombie stays
    assert it.ask("two")["template"] == found["template"]


def test_what_starts_threads_when_imported_is_not_forked(node, tmp_path):
    """Then every message gets a new Python, as Flower starts it."""
    path = tmp_path / "path"
    path.mkdir()
    (path / "busy.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    program = path / "flwr-clientapp"
    program.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/out/one.part; mv {tmp_path}/out/one.part {tmp_path}/out/said\n'
    )
    program.chmod(0o755)
    it = node(
        {"deployed.py": "import busy\n"},
        PYTHONPATH=f"{path}:{os.environ.get('PYTHONPATH', '')}",
        PATH=f"{path}:{os.environ['PATH']}",
    )
    it.process.stdin.write("one\n")
    it.process.stdin.flush()
    until((it.out / "said").exists, "a program to be started")
    said = (it.out / "said").read_text().split()
    assert said[:5] == ["--runtime-api-address", "127.0.0.1:1234", "--token", "one", "--insecure"]
    assert said[5] == "--parent-pid"


def test_fresh_is_a_word_of_silo_toml(tmp_path):
    folders.init(tmp_path / "d", load({}), ["silo-0"])
    path = tmp_path / "d" / "silos" / "silo-0" / "silo.toml"
    assert not folders.read_silo(path.parent).fresh
    text = path.read_text()
    path.write_text(f"fresh = true\n{text}")
    assert folders.read_silo(path.parent).fresh
    path.write_text(f'fresh = "no"\n{text}')
    with pytest.raises(InputError, match="fresh is 'no'; write true or false"):
        folders.read_silo(path.parent)
