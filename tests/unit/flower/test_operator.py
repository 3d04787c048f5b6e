"""What a silo's operator sees and takes home: status, page, export; with logs that an app may have filled with anything."""

from __future__ import annotations

import hashlib
import json
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest
from typer.testing import CliRunner

import feduca
from feduca.cli.main import app as cli
from feduca.errors import InputError
from feduca.flower import client_app, kept
from feduca.flower.app import OneSilo, RecipeApp
from feduca.flower.board import Board
from feduca.flower.store import SiloStore
from feduca.flower.view import seen
from feduca.recipes.build import make_task
from feduca.types import LocalSpec
from numpy_task import NumpyTask
from supernode import SuperNode, announcement

SMALL = {"task": {"clients": 2, "max_examples": 200, "test_share": 0.5}, "local": {"epochs": 1, "batch_size": 50}}
STACK = {
    "offer": {"kind": "stack"},
    "participation": {"rule": "loss", "against": "outside"},
    "mechanism": {"name": "fedavg"},
}


def run(*arguments):
    return CliRunner().invoke(cli, list(map(str, arguments)), catch_exceptions=False)


@pytest.fixture
def worked(tmp_path, monkeypatch):
    """A silo that worked three rounds on real data, under a policy that measures its gain."""
    node = SuperNode(tmp_path, monkeypatch, SMALL)
    node.policy("least_gain = -1\n")
    return rounds(node)


def rounds(node, turns=3):
    app = client_app(RecipeApp(node.recipe))
    theta = make_task(node.recipe, 0).init(0).numpy()
    for turn in range(1, turns + 1):
        assert b"joined" in node.ask(announcement(turn, theta, "run-1", LocalSpec(1, 50)), app)
    return node


def test_status_says_in_words_what_is_on_disk(worked):
    said = run("silo", "status", worked.silo).output
    for text in (
        "silo-0 is in: joined",
        "rounds worked: 3",
        "gain over alone: ",
        "3 with a model",
        "deploys: ",
        "least_gain = -1.0",
    ):
        assert text in said
    assert "not measured" not in said
    known = json.loads(run("silo", "status", worked.silo, "--json").output)
    sent = [json.loads(line) for line in (worked.silo / "state" / "sent.jsonl").read_text().splitlines()]
    assert known["totals"] == {"messages": 3, "bytes": sum(line["bytes"] for line in sent), "models": 3}
    assert known["rounds"][-1]["norm"] > 0
    assert run("silo", "pause", worked.silo, "--reason", "audit").exit_code == 0
    assert "silo-0 is out: vetoed by its operator: audit" in run("silo", "status", worked.silo).output
    assert run("silo", "resume", worked.silo).exit_code == 0
    assert "silo-0 is in" in run("silo", "status", worked.silo).output
    (worked.silo / "policy.toml").write_text("no = 1")
    assert "unknown key 'no'" in run("silo", "status", worked.silo).output


def test_logs_of_a_stranger_are_read_with_care(worked):
    state = worked.silo / "state"
    hostile = [
        {"decision": "joined", "round": "99999999999999", "reason": "x"},
        {
            "decision": "joined",
            "round": 4,
            "reason": "\x1b[2J<script>alert(1)</script>" * 50,
            "accuracy": {"own": float("nan")},
        },
        {"decision": "joined", "round": 5, "reason": ["a"], "accuracy": "no", "gain": True, "norm": 10**400},
        {"decision": ["joined"], "round": 6},
        {"decision": "anything", "round": 7},
    ]
    with (state / "log.jsonl").open("ab") as file:
        file.write(
            "".join(json.dumps(line) + "\n" for line in hostile).encode() + b"\xff\xfe{\n" + b"[" * 10_000 + b"\n[1]\n"
        )
    with (state / "sent.jsonl").open("ab") as file:
        file.write(b'{"bytes": "many", "what": {"a": 1}, "round": -1e999}\n')
    known = seen(worked.silo)
    text = json.dumps(known, allow_nan=False)
    assert "\\u001b" not in text
    assert [r["round"] for r in known["rounds"]] == [1, 2, 3, 4, 5]
    assert known["rounds"][-1]["gain"] is None
    assert all(len(r["reason"]) <= 201 for r in known["rounds"])
    (state / "log.jsonl").unlink()
    (state / "log.jsonl").symlink_to("/etc/passwd")
    with pytest.raises(InputError, match="is a link"):
        seen(worked.silo)


def test_the_page_answers_this_machine_alone_and_asks_no_server(worked):
    board = Board(worked.silo, 0)
    threading.Thread(target=board.serve, daemon=True).start()
    try:
        assert board.address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(board.address + "silo.json") as answer:
            assert json.loads(answer.read())["silo"] == "silo-0"
        for path, host in (
            ("silo.json", "evil.example"),
            ("state/log.jsonl", "127.0.0.1"),
            ("../silo.toml", "127.0.0.1"),
        ):
            asked = urllib.request.Request(board.address + path, headers={"Host": host})
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(asked)
            assert refused.value.code in (403, 404)
            refused.value.close()
        (worked.silo / "silo.toml").write_text("= broken")
        with urllib.request.urlopen(board.address + "silo.json") as answer:
            assert "is not TOML" in json.loads(answer.read())["error"]
    finally:
        board.close()


def test_a_silo_exports_the_model_it_may_deploy(worked, tmp_path):
    out = tmp_path / "model"
    assert "written to" in run("silo", "export", worked.silo, "-o", out).output
    exported = feduca.load(out)
    card = exported.card
    assert list(exported.models) == ["silo-0"]
    assert card["silo"]["what"] in ("own", "offer")
    assert card["silo"]["round"] == 3
    sums = dict(line.split("  ")[::-1] for line in (out / "SHA256SUMS").read_text().splitlines())
    assert set(sums) == {"silos/silo-0.safetensors", "README.md", "card.json"}
    for name, said in sums.items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == said
    # It is the model that scored so, on this silo's data.
    task = make_task(worked.recipe, 0)
    module = exported.module("silo-0")
    flat = task.layout.pack({**dict(module.named_parameters()), **dict(module.named_buffers())}).detach()
    score = OneSilo(task, "silo-0").evaluate(flat[None], np.array([0]), "validation")
    assert score.accuracy[0] == card["silo"]["validation"]["deployed"]["accuracy"]


def test_a_mixture_is_exported_with_its_weights(tmp_path, monkeypatch):
    alike = {"task": {**SMALL["task"], "classes_per_client": 10, "max_examples": 400}, "local": SMALL["local"]}
    node = SuperNode(tmp_path, monkeypatch, {**alike, **STACK})
    task, app = make_task(node.recipe, 0), client_app(RecipeApp(node.recipe))
    theta = task.init(0)
    for turn in range(1, 8):  # the shared model is what the other silo learnt: each of the two knows something
        node.ask(announcement(turn, theta.numpy(), "run-1", LocalSpec(3, 10)), app)
        known = kept.about(SiloStore(node.silo / "state"))
        if known is not None and known["weights"]:
            break
        theta = task.train(theta[None], np.array([1]), LocalSpec(3, 10), turn, 0)[0]
    exported = kept.export(node.silo, tmp_path / "model")
    assert exported.card["silo"]["what"] == "mixture"
    assert sum(exported.card["mixtures"]["silo-0"].values()) == pytest.approx(1)
    names = {key.partition("/")[0] for key in exported.models["silo-0"]}
    assert names == set(exported.card["mixtures"]["silo-0"])
    assert exported.module("silo-0") is not None


def test_there_is_nothing_to_export_before_a_decision_and_nothing_of_a_strangers(tmp_path, monkeypatch):
    node = SuperNode(tmp_path, monkeypatch)
    with pytest.raises(InputError, match="holds no model yet"):
        kept.export(node.silo, tmp_path / "model")

    class App:
        recipe = node.recipe

        def silo(self, name, index, config):
            return NumpyTask(2)

    node.ask(announcement(1, np.zeros(4)), client_app(App()))  # type: ignore[arg-type]
    path = node.silo / "state" / kept.FILE
    whole = path.read_bytes()
    for damaged in (b"", whole[:20], whole[:-3], whole.replace(b"silo-0", b"silo-9"), b"\xff" * 100):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"damaged|is of silo"):
            kept.export(node.silo, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    path.write_bytes(whole)
    assert kept.export(node.silo, tmp_path / "model").models["silo-0"]["theta"].shape == (4,)


def test_a_no_changes_nothing_and_a_folder_that_is_no_app_gets_a_line(worked, tmp_path):
    silo = str(worked.silo)
    answer = CliRunner().invoke(cli, ["silo", "leave", silo], input="n\n")
    assert (answer.exit_code, answer.output.splitlines()[-1]) == (1, "nothing has changed")
    assert not (worked.silo / "state" / "leave").exists()
    answer = CliRunner().invoke(cli, ["silo", "approve", silo, "--app", str(tmp_path / "elsewhere"), "--yes"])
    assert answer.exit_code != 0
    (tmp_path / "empty").mkdir()
    answer = CliRunner().invoke(cli, ["silo", "approve", silo, "--app", str(tmp_path / "empty"), "--yes"])
    assert "is no Flower app: it has no pyproject.toml" in str(answer.exception)
