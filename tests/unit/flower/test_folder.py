"""A deployment's folders: made whole or not at all, written by their own user, and what of them wants a restart."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from feduca.cli.main import app as cli
from feduca.errors import ConfigError, InputError
from feduca.flower import certificates, deploy, install
from feduca.flower import folder as folders
from feduca.flower.processes import started
from feduca.flower.view import seen
from feduca.recipes.schema import load


def feduca(*arguments):
    return CliRunner().invoke(cli, list(map(str, arguments)), catch_exceptions=False)


@pytest.fixture
def place(tmp_path):
    return folders.init(tmp_path / "d", load("quickstart"), ["silo-0", "silo-1"])


class Stop(BaseException):
    """As a signal ends a program."""


@pytest.mark.parametrize("there", [False, True], ids=["new", "empty"])
@pytest.mark.parametrize("where", ["a silo's key", "the server's certificate", "what starts it"])
def test_an_init_that_fails_half_way_leaves_nothing(tmp_path, monkeypatch, there, where):
    target = tmp_path / "d"
    if there:
        target.mkdir()
    made = []

    def stops(folder, *rest):
        made.append(folder)
        if where != "a silo's key" or len(made) == 2:
            raise Stop
        return key(folder, *rest)

    key = certificates.make_silo_key
    place, name = {
        "a silo's key": (certificates, "make_silo_key"),
        "the server's certificate": (certificates, "issue_server"),
        "what starts it": (install, "write"),
    }[where]
    with monkeypatch.context() as broken:
        broken.setattr(place, name, stops)
        with pytest.raises(Stop):
            feduca("deploy", "init", target, "--silos", "2")
    assert made
    assert [path.name for path in tmp_path.iterdir()] == ["d"] * there
    assert not there or list(target.iterdir()) == []
    # Killed by force, it leaves a part, which the next attempt puts away.
    part = target / ".part" if there else tmp_path / ".d.part"
    (part / "server").mkdir(parents=True)
    assert feduca("deploy", "init", target, "--silos", "2").exit_code == 0
    assert sorted(path.name for path in target.iterdir()) == ["README.md", "ca", "server", "silos"]
    assert not part.exists()
    assert folders.read_silo(target / "silos" / "silo-1").name == "silo-1"


def test_bad_words_make_no_folder(tmp_path):
    for arguments in (["--config", "west.data=1"], ["--app", tmp_path / "none"], ["--bind", "eth0"], ["--for", "x"]):
        with pytest.raises(ConfigError if "--app" not in arguments else InputError):
            feduca("deploy", "init", tmp_path / "d", "--silos", "1", *arguments)
        assert list(tmp_path.iterdir()) == []


def test_a_silo_that_cannot_be_added_leaves_nothing(place, monkeypatch):
    (place / "server" / "app" / "pyproject.toml").unlink()
    with pytest.raises(InputError, match="is no Flower app"):
        feduca("deploy", "add", place, "west")
    assert not list((place / "silos").glob("*west*"))
    assert not (place / "server" / "keys" / "west.pub").exists()


# Whose folder it is -------------------------------------------------------------------------------------------------


def belong_to_another(path, monkeypatch):
    """As root in a folder of a service's user."""
    if os.geteuid() == 0:
        for one in (path, *path.rglob("*")):
            os.chown(one, 23456, 23456)
        return 23456
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return os.geteuid()


@pytest.mark.parametrize(
    "command",
    [
        ["silo", "approve", "SILO", "--app", "APP", "--yes"],
        ["deploy", "approve", "SILO", "--app", "APP", "--yes"],
        ["silo", "pause", "SILO"],
        ["silo", "resume", "SILO"],
        ["silo", "leave", "SILO", "--yes"],
        ["silo", "export", "SILO", "-o", "SILO/model"],
        ["deploy", "silo", "SILO"],
        ["deploy", "check", "SILO"],
        ["deploy", "rotate", "SILO"],
        ["deploy", "superlink", "SERVER"],
        ["deploy", "run", "SERVER"],
        ["deploy", "remove", "SERVER", "silo-0"],
        ["deploy", "add", "ALL", "west"],
        ["deploy", "rotate", "ALL", "silo-0"],
        ["deploy", "renew", "ALL"],
        ["deploy", "up", "--folder", "ALL"],
    ],
    ids=" ".join,
)
def test_root_writes_nothing_into_a_services_folder(place, monkeypatch, command):
    """It would take the files away from the user that needs them; one line says whose command it is."""
    folder = place / "silos" / "silo-0"
    words = [
        word.replace("SILO", str(folder))
        .replace("SERVER", str(place / "server"))
        .replace("ALL", str(place))
        .replace("APP", str(place / "server" / "app"))
        for word in command
    ]
    monkeypatch.setattr("sys.argv", ["/opt/feduca/bin/feduca", *words])
    user = belong_to_another(place, monkeypatch)
    before = {path: (path.stat().st_uid, path.stat().st_mtime_ns) for path in (place, *place.rglob("*"))}
    with pytest.raises(InputError, match=r"belongs to .*, and this is root; run it as that user: ") as refused:
        feduca(*words)
    said = str(refused.value)
    assert said.endswith(" ".join(["/opt/feduca/bin/feduca", *words]))
    assert f"setpriv --reuid={user} --regid={user} --clear-groups" in said or "runuser -u " in said
    after = {path: (path.stat().st_uid, path.stat().st_mtime_ns) for path in (place, *place.rglob("*"))}
    assert after == before


def test_root_in_its_own_folder_and_looking_alone_are_as_ever(place, monkeypatch):
    silo = place / "silos" / "silo-0"
    belong_to_another(place / "silos" / "silo-1", monkeypatch)
    assert feduca("silo", "status", place / "silos" / "silo-1").exit_code == 0
    if os.stat(silo).st_uid == os.geteuid():
        assert feduca("silo", "pause", silo).exit_code == 0


# What wants a restart ------------------------------------------------------------------------------------------------


def test_a_silo_toml_that_was_mended_wants_a_restart_and_status_says_so(place, monkeypatch):
    silo = place / "silos" / "silo-0"
    process = deploy.start_silo(folders.read_silo(silo))
    try:
        assert started(process.pid)
        assert seen(silo)["outdated"] == []
        path = silo / "silo.toml"
        path.write_text(path.read_text() + 'data = "/srv/north.csv"\n')
        assert seen(silo)["outdated"] == ["config.data"]
        said = feduca("silo", "status", silo).output
        assert "silo.toml has changed since the silo was started (config.data); end start.sh and start it again" in said
        # Approving an app writes into the same file, and needs no restart.
        shutil.copy(path, silo / "was")
        path.write_text(path.read_text().replace('data = "/srv/north.csv"\n', "").replace('app = "', 'app = "0'))
        assert seen(silo)["outdated"] == []
        shutil.copy(silo / "was", path)
    finally:
        process.stop(2)
    assert seen(silo)["outdated"] == []  # nothing runs that could have read it


def test_every_start_of_a_supernode_reads_silo_toml_anew(place, monkeypatch):
    import threading

    silo, stop, told = folders.read_silo(place / "silos" / "silo-0"), threading.Event(), []

    class Ended:
        pid, returncode = 1, 3

        def running(self):
            return False

        def stop(self):
            return None

    def start(mine):
        told.append(dict(mine.config))
        if len(told) == 2:
            stop.set()
        path = mine.path / "silo.toml"
        path.write_text(path.read_text() + "beds = 12\n")
        return Ended()

    monkeypatch.setattr(deploy, "start_silo", start)
    began = time.monotonic()
    deploy.keep_silo(silo, stop)
    assert told == [{}, {"beds": 12}]
    assert time.monotonic() - began < 60


def test_a_damaged_note_of_the_last_start_says_nothing(place):
    mine = folders.read_silo(place / "silos" / "silo-0")
    here = {"pid": os.getpid(), "since": started(os.getpid())}
    for text in (
        "",
        "[]",
        "{",
        json.dumps({**here, "with": 3}),
        json.dumps(here),
        '{"pid": "x", "since": "", "with": {}}',
    ):
        (mine.state / deploy.STARTED).write_text(text)
        assert deploy.outdated(mine) == []
    (mine.state / deploy.STARTED).write_text(json.dumps({**here, "with": deploy._needs_restart(mine)}))
    assert deploy.outdated(mine) == []
    assert deploy.outdated(replace(mine, superlink="other.example:1")) == ["superlink"]
