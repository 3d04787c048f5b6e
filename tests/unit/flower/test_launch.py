"""The guard in the SuperNode: which app runs is what the bundle is, not what the server says of it."""

from __future__ import annotations

import hashlib
import sqlite3
from types import SimpleNamespace

import pytest
from flwr.supercore.constant import TaskType
from flwr.supernode import start_client_internal as flower

from feduca.flower import approval, launch
from feduca.flower import folder as folders
from feduca.recipes.schema import load


@pytest.fixture
def pulled(tmp_path, monkeypatch):
    """What the SuperNode makes of a run and a bundle that a server sends, behind the guard."""
    folders.init(tmp_path / "d", load({}), ["silo-0"])
    silo = tmp_path / "d" / "silos" / "silo-0"

    def pull(*, receive, get_run, get_fab, trusted_entities, **_):
        assert receive()[0].metadata.run_id == 7
        run = get_run(7)
        fab = get_fab(run.fab_hash, 7)
        return run, fab, flower._verify_fab(fab, trusted_entities)

    monkeypatch.setattr(flower, "_pull_and_store_message", pull)
    for name in ("_push_messages", "_verify_fab"):
        monkeypatch.setattr(flower, name, getattr(flower, name))
    launch.guard(silo)

    def ask(content, **said):
        words = {"fab_id": "feduca/feduca-deployment", "fab_version": "1.0.0", "fab_hash": "", "primary_task_type": ""}
        words["override_config"] = {}
        run = SimpleNamespace(**words | said)
        fab = SimpleNamespace(content=content, hash_str=said.get("fab_hash", ""), verifications={"good": "true"})
        message = SimpleNamespace(
            metadata=SimpleNamespace(run_id=7, message_id="m", message_type="train", group_id="1")
        )
        ways = {"get_run": lambda number: run, "get_fab": lambda wanted, number: fab, "pull_object": None}
        ways |= {"receive": lambda: (message, None), "object_store": None}
        ways["state"] = SimpleNamespace(get_run=lambda number: None)
        return flower._pull_and_store_message(trusted_entities=None, **ways)  # type: ignore[call-arg]

    return silo, ask


def test_what_the_server_calls_an_app_is_not_believed(pulled):
    """Neither the fingerprint, under which an app that was approved earlier may still be there, nor the name of its folder."""
    silo, ask = pulled
    good = (silo / approval.APPROVED).read_bytes()
    run, fab, verified = ask(good, fab_hash="0" * 64, fab_id="feduca/x", fab_version="1/../../../../tmp/there")
    assert verified
    assert run.fab_hash == fab.hash_str == hashlib.sha256(good).hexdigest() == folders.read_silo(silo).app
    assert (run.fab_id, run.fab_version) == ("feduca/feduca-deployment", "1.0.0")


def test_other_bytes_and_agents_are_refused(pulled):
    silo, ask = pulled
    good = (silo / approval.APPROVED).read_bytes()
    approved = folders.read_silo(silo).app
    assert not ask(good + b"\0", fab_hash=approved)[2]
    assert not ask(b"no bundle at all", fab_hash=approved)[2]
    assert not ask(good, fab_hash=approved, primary_task_type=TaskType.AGENT_APP)[2]
    assert (silo / approval.PROPOSED).read_bytes() == b"no bundle at all"


def test_the_superlink_waits_for_its_database(monkeypatch):
    from flwr.supercore import sql_mixin

    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", sql_mixin.SQLITE_PRAGMAS)
    launch.patient()
    connection = sqlite3.connect(":memory:")
    sql_mixin._set_sqlite_pragmas(connection, None)
    assert connection.execute("PRAGMA busy_timeout").fetchone() == (60_000,)
    connection.close()
