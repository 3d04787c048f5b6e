"""What the server's operator sees: settings, log, records as they grow and are cut, hooks that fail, figures, health."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import tomlkit
from hypothesis import given
from hypothesis import settings as h
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

import feduca
from feduca.errors import ConfigError
from feduca.flower import deploy, logs
from feduca.flower import folder as folders
from feduca.flower.operate import log as events
from feduca.flower.operate import metrics, monitor, settings
from feduca.flower.operate.alerts import WAITING, Event, Hooks
from feduca.flower.operate.seen import Tail, Watched, class_of
from feduca.flower.operate.settings import ABSENT, BACK, DIED, FAILED, LEFT, Alert
from feduca.flower.processes import free_port, started
from feduca.recipes.schema import load
from feduca.report.reading import RunReader
from feduca.report.verdict import verdict
from feduca.runs.directory import without_none


@pytest.fixture
def server(tmp_path):
    """A server's folder whose run is a real one, simulated: its records are those of a deployment."""
    recipe = load("quickstart", {"rounds": 3, "seeds": [0], "task.clients": 3, "local.epochs": 1})
    place = folders.init(tmp_path / "d", recipe, ["silo-0", "silo-1", "silo-2"], out=str(tmp_path / "runs"))
    found = folders.read_server(place)
    feduca.run(without_none(recipe.plain()), out=tmp_path / "runs")
    assert deploy.run_directory(found).state() == "finished"
    return found


def rows(path, name):
    return [json.loads(line) for line in (path / name).read_text().splitlines()]


def rewritten(path, name, items):
    (path / name).write_text("".join(json.dumps(item) + "\n" for item in items))


def running(server, *, alive=True):
    """Say that the run goes on, under this very process or one that is gone."""
    path = deploy.run_directory(server).path
    (path / "status.json").write_text('{"state": "running"}')
    since = started(os.getpid()) if alive else "1"
    (server.path / deploy.RUNNING).write_text(json.dumps({"run": 1, "pid": os.getpid(), "since": since}))
    return path


# Settings ------------------------------------------------------------------------------------------------------------


def test_what_server_toml_says_is_read(tmp_path):
    place = folders.init(tmp_path / "d", load("quickstart"), ["silo-0"], metrics="127.0.0.1:9464")
    assert folders.read_server(place).operate.metrics == ("127.0.0.1", 9464)
    path = place / "server" / "server.toml"
    words = tomlkit.parse(path.read_text())
    words["overdue"] = 90
    words["alert"] = {"command": "/usr/bin/page 'the ward'", "webhook": "https://x.example/a", "absent-rounds": 5}
    path.write_text(tomlkit.dumps(words))
    operate = folders.read_server(place).operate
    assert operate.overdue == 90
    assert operate.alert.command == ("/usr/bin/page", "the ward")
    assert (operate.alert.absent_rounds, operate.alert.events) == (5, settings.EVENTS)
    assert folders.read_server(folders.init(tmp_path / "e", load("quickstart"), ["silo-0"])).operate.metrics is None


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"metrics": 9464}, "metrics is 9464; write host:port"),
        ({"metrics": "127.0.0.1:0"}, "write host:port"),
        ({"overdue": -1}, "overdue is -1; it is seconds"),
        ({"alert": "me"}, r"\[alert\] is 'me'; it is a table"),
        ({"alert": {"comand": "x"}}, "has an entry 'comand' that is not known; it takes command, webhook"),
        ({"alert": {"command": "a 'b"}}, 'command is "a \'b"; write a program'),
        ({"alert": {"webhook": "http://other.example/"}}, "write an https:// address"),
        ({"alert": {"webhook": "file:///etc/passwd"}}, "write an https:// address"),
        ({"alert": {"events": ["left"]}}, r"events is \['left'\]; it is a list of some of silo-left, silo-absent"),
        ({"alert": {"absent-rounds": 1.5}}, "it is a number of rounds"),
        ({"alert": {"timeout": float("inf")}}, "timeout is inf; it is seconds"),
    ],
)
def test_bad_settings_are_one_line(tmp_path, tree, words):
    with pytest.raises(ConfigError, match=words):
        settings.read(tree, tmp_path / "server.toml")


TREE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just("https://[x"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NAMES = ("command", "webhook", "events", "absent-rounds", "timeout", "other")


@h(max_examples=300, deadline=None)
@given(st.fixed_dictionaries({}, optional={
    "metrics": TREE, "overdue": TREE, "alert": TREE | st.dictionaries(st.sampled_from(NAMES), TREE, max_size=4),
}))  # fmt: skip
def test_hostile_settings_are_taken_or_refused_in_one_line(tree):
    with contextlib.suppress(ConfigError):  # no other exception
        assert isinstance(settings.read(tree, Path("server.toml")), settings.Operate)


# The log -------------------------------------------------------------------------------------------------------------


def test_several_programs_write_one_log_that_is_cut_when_it_is_full(tmp_path, monkeypatch):
    """Lines of all of them stay whole, those after the cut too; nobody else may read them."""
    monkeypatch.setattr(logs, "BYTES", 20_000)
    mine = events.begin(tmp_path, "supervisor", rotate=True)
    code = (
        "import logging, sys, pathlib; from feduca.flower.operate import log; log.begin(pathlib.Path(sys.argv[1]), 'app')\n"
        "for k in range(300): logging.getLogger('feduca').info('line %d\\n', k, extra={'event': 'round', 'round': k})"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    try:
        while other.poll() is None:
            logging.getLogger("feduca").info("mine")
            mine.look()  # type: ignore[attr-defined]
            time.sleep(0.005)
    finally:
        events.end(mine)
    files = sorted(tmp_path.glob("log.jsonl*"))
    assert len(files) > 1
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    theirs = [line["round"] for line in lines if line["from"] == "app"]
    assert theirs
    assert theirs[-1] == 299 or 299 in theirs
    assert all(line["text"] == f"line {line['round']}\\n" for line in lines if line["from"] == "app")
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)


# Records -------------------------------------------------------------------------------------------------------------


def test_a_file_is_read_on_and_anew_when_it_was_cut(tmp_path):
    path = tmp_path / "x.jsonl"
    tail = Tail(path)
    assert tail.new() == (False, [])
    path.write_bytes(b"a\nb\nhal")
    assert tail.new() == (False, [b"a\n", b"b\n"])
    path.write_bytes(b"a\nb\nhalf\n")
    assert tail.new() == (False, [b"half\n"])
    with path.open("r+b") as file:
        file.truncate(2)
    assert tail.new() == (True, [b"a\n"])
    path.unlink()
    assert tail.new() == (True, [])


def test_reasons_have_classes():
    assert class_of("u(0.0422) = 0.9536 is below gamma = 0.9537") == "threshold"
    assert class_of("offered 0.7000 does not beat own 0.7100") == "no better"
    assert class_of("equal accuracy 0.7000: no gain") == "tie"
    assert class_of("declined: policy") == "policy"
    assert class_of("because of Smith, born 1970") == "other"


def test_figures_are_those_of_the_records(server):
    watched = Watched(server)
    watched.look()
    path = deploy.run_directory(server).path
    text = metrics.exposition(watched, True, 0).decode()
    found = {(s.name, *s.labels.values()): s.value for f in text_string_to_metric_families(text) for s in f.samples}
    rounds, clients = rows(path, "rounds.jsonl"), rows(path, "clients.jsonl")
    assert found["feduca_rounds_total",] == 3
    assert found["feduca_accuracy",] == rounds[-1]["accuracy"]
    assert found["feduca_model_bytes_total", "up"] == sum(r["bytes_up"] for r in rounds)
    assert found["feduca_phase_seconds_total", "round"] == pytest.approx(sum(r["seconds"]["round"] for r in rounds))
    for status in ("joined", "declined", "absent", "refused", "left"):
        assert found["feduca_silos", status] == clients[-1]["status"].count(status)
        assert found["feduca_silo_rounds_total", status] == sum(c["status"].count(status) for c in clients)


# Alerts --------------------------------------------------------------------------------------------------------------


def test_a_hook_that_hangs_holds_nobody_up_and_ends_with_all_it_started(tmp_path, caplog):
    script = tmp_path / "hang.sh"
    script.write_text(f"sleep 600 &\necho $! >> {tmp_path}/children\nwait\n")
    hooks = Hooks(Alert(command=("/bin/sh", str(script)), timeout=1.0))
    began = time.monotonic()
    for k in range(WAITING + 20):
        hooks.tell(Event(ABSENT, "r", k, "north", 3))
    assert time.monotonic() - began < 0.9
    dropped = hooks.failures
    assert dropped in (19, 20)  # the one that is being told waits no more
    deadline = time.monotonic() + 60
    while hooks.failures < dropped + 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    said = [r.getMessage() for r in caplog.records if "failed" in r.getMessage()]
    assert said.count("the alert command failed: it was ended after 1 s") == 1  # of several
    assert "the alert queue failed: 100 alerts wait already; this one was dropped" in said
    first = (tmp_path / "children").read_text().split()[0]
    with contextlib.suppress(OSError):  # gone, as it should be
        assert "sleep" not in Path(f"/proc/{first}/cmdline").read_text()
    hooks.close(0.1)


def test_a_hook_gets_the_event_and_nothing_of_the_data(tmp_path):
    out = tmp_path / "out"
    code = f"import os, sys; open({str(out)!r}, 'w').write(sys.stdin.read() + os.environ['FEDUCA_EVENT'])"
    hooks = Hooks(Alert(command=(sys.executable, "-c", code), events=(LEFT,)))
    hooks.tell(Event(BACK, "r", 2))  # nobody asked for it
    hooks.tell(Event(LEFT, "q/abc-s0", 7, "north"))
    hooks.close(20)
    told, _, event = out.read_text().rpartition("}")
    assert event == LEFT
    told = json.loads(told + "}")
    assert told.pop("time").endswith("Z")
    assert told == {
        "event": LEFT, "run": "q/abc-s0", "round": 7, "silo": "north", "text": "north has left the federation for good",
    }  # fmt: skip


# The monitor ---------------------------------------------------------------------------------------------------------


class Told:
    def __init__(self):
        self.events = []
        self.failures = 0

    def tell(self, event):
        self.events.append((event.what, event.round, event.silo))

    def close(self, seconds=0.0):
        return None


@pytest.fixture
def watch(server, monkeypatch):
    """A monitor that looks when it is told to."""
    monkeypatch.setattr(monitor.Monitor, "_run", lambda self: None)
    running(server)
    made = monitor.Monitor(server)
    made.hooks = Told()  # type: ignore[assignment]
    made.look()
    assert made.hooks.events == []  # what was so before is no news
    yield made
    made.close()


def test_news_are_told_once(watch, server):
    path = running(server)
    rounds, clients = rows(path, "rounds.jsonl"), rows(path, "clients.jsonl")

    def add(*status):
        number = len(rounds) + 1
        rounds.append({**rounds[-1], "round": number})
        clients.append({**clients[-1], "round": number, "status": list(status), "reason": ["x"] * len(status)})
        rewritten(path, "rounds.jsonl", rounds)
        rewritten(path, "clients.jsonl", clients)
        watch.look()
        watch.look()
        found, watch.hooks.events = watch.hooks.events, []
        return found

    assert add("joined", "absent", "joined") == []
    assert add("joined", "absent", "left") == [(LEFT, 5, "silo-2")]
    assert add("declined", "absent", "left") == [(ABSENT, 6, "silo-1")]
    assert add("joined", "absent", "left") == []  # once for each absence
    assert add("joined", "joined", "left") == []
    assert add("refused", "absent", "left") == [(FAILED, 9, "")]
    # The silos' names come with silos.json, who comes late included; the verdict names the absent.
    names = [{"name": n, "node": 1, "examples": 1} for n in ("north", "south", "east", "west")]
    (path / "silos.json").write_text(json.dumps({"silos": names}))
    add("joined", "absent", "left", "joined")
    assert watch.watched.run is not None
    assert watch.watched.run.name_of(3) == "west"
    seen = RunReader(path).run
    assert (seen.unreadable, len(seen.clients), seen.silos[3]) == (0, 10, "west")
    assert [c.status[3] for c in seen.clients[-2:]] == ["a", "j"]
    assert "No answer in the last round from south (2 rounds)." in " ".join(verdict(seen))
    assert "east (round 5)" in " ".join(verdict(seen))


def test_an_app_that_dies_and_a_rollback_are_told(watch, server, monkeypatch):
    monkeypatch.setattr(monitor, "GRACE_S", 0.2)
    path = running(server, alive=False)
    watch.look()
    assert watch.hooks.events == []  # it may be writing its last word
    time.sleep(0.3)
    watch.look()
    watch.look()
    (path / "status.json").write_text(json.dumps({"state": "failed", "reason": monitor.KILLED}))
    watch.look()
    assert watch.hooks.events == [(DIED, 4, "")]
    running(server)
    watch.look()
    (path / "status.json").write_text(json.dumps({"state": "failed", "reason": "3 silos were expected"}))
    watch.look()
    assert watch.hooks.events == [(DIED, 4, ""), (FAILED, 4, "")]

    rewritten(path, "rounds.jsonl", rows(path, "rounds.jsonl")[:1])
    rewritten(path, "clients.jsonl", rows(path, "clients.jsonl")[:1])
    (path / "status.json").write_text(json.dumps({"state": "interrupted", "reason": "rolled back to round 1"}))
    (path / "events.jsonl").write_text(json.dumps({"time": "", "round": 1, "event": "rolled back"}) + "\n")
    watch.look()
    assert watch.hooks.events[2:] == [(BACK, 1, "")]
    assert watch.watched.run is not None
    assert watch.watched.run.round == 1


def test_a_round_is_overdue_only_when_all_it_may_wait_for_is_over(watch, server):
    running(server)
    watch.look()
    assert watch.watched.overdue() == 0
    run = watch.watched.run
    most = server.settings["round-timeout"] + server.settings["silos-timeout"] + 60
    run.changed = run.said = watch.watched.app_since = time.time() - most - 10
    assert 9 < watch.watched.overdue() < 12
    run.state = "finished"
    assert watch.watched.overdue() == 0


def test_a_taken_port_costs_the_metrics_alone(server, caplog):
    import socket
    from dataclasses import replace

    port = free_port()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        operate = settings.Operate(metrics=("127.0.0.1", port))
        made = monitor.Monitor(replace(server, operate=operate))
        made.close()
    assert f"no metrics: 127.0.0.1:{port} cannot be listened on" in caplog.text
    assert threading.active_count() < 20
