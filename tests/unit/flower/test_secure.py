"""Secure aggregation over Flower's messages: real folders, keys and apps, without processes."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo

from feduca.core import rounds as loop
from feduca.errors import ConfigError
from feduca.federation import InProcess
from feduca.flower import FedUCAStrategy, client_app, secure_silo
from feduca.flower import folder as folders
from feduca.flower.folder import rotate
from feduca.flower.keys import Keys
from feduca.flower.server import Settings, serve
from feduca.privacy import silo as protocol
from feduca.privacy.protocol import words_of as words_of_statement
from feduca.recipes.build import behaviour_of, make_server, masked
from feduca.recipes.schema import load
from feduca.runs.lines import Lines
from flower_world import BASE
from local_grid import LocalGrid, Node
from numpy_task import NumpyApp, NumpyTask

N = 4
ON = {
    "privacy.secure_aggregation": True,
    "task.clients": N,
    "rounds": 4,
    "mechanism.name": "fedavg",
    "participation.rule": "always",
}
REFUSALS = {**ON, "participation.rule": "accuracy", "offer.kind": "best-mixture"}


def app_of(settings):
    return NumpyApp(load({**BASE, "name": "deployed"}, settings), N)


@dataclass
class KeyedGrid(LocalGrid):
    """Nodes with the keys they are registered by."""

    keys: dict[int, bytes] = field(default_factory=dict)

    def get_nodes(self):
        return [NodeInfo(node_id=key, name=node.name, public_key=self.keys[key]) for key, node in self.nodes.items()]


class Place:
    """A deployment folder, and its silos behind a grid. `tamper(silo, asked, reply)` is what the network does."""

    def __init__(self, path: Path, settings, tamper=lambda silo, asked, reply: reply):
        self.app, self.path = app_of(settings), path
        own = path / "own"
        own.mkdir(parents=True)
        (own / "deployed.py").write_text("# the app is in this process\n")
        self.names = [f"silo-{k}" for k in range(N)]
        folders.init(path / "d", self.app.recipe, self.names, app=own)
        flower, pems = client_app(self.app), {name: pem for pem, name in Keys(path / "d/server/keys").names().items()}
        self.wire: list[tuple[str, Message, Message]] = []

        def node(name):
            def through(asked, reply):
                reply = tamper(name, asked, reply)
                if reply is not None:
                    self.wire.append((name, asked, reply))
                return reply

            state = path / "d/silos" / name / "state"
            return Node(flower, {"silo": name, "folder": str(state)}, name=name, tamper=through)

        self.grid = KeyedGrid(
            {10 + k: node(name) for k, name in enumerate(self.names)},
            keys={10 + k: pems[name] for k, name in enumerate(self.names)},
        )

    def serve(self, **settings) -> Path:
        words = {"silos": N, "out": str(self.path / "runs"), "silos_timeout": 5.0, "round_timeout": 2.0}
        return serve(self.app, self.grid, Settings(**{**words, "folder": str(self.path / "d/server"), **settings}))

    def log(self, name: str) -> str:
        return (self.path / "d/silos" / name / "state/log.jsonl").read_text()


def in_process(settings):
    """The same run in process, client by client."""
    recipe, task = app_of(settings).recipe, NumpyTask(N)
    federation = InProcess(task, behaviour_of(recipe, 0, task), one_at_a_time=True)
    around = masked(recipe, federation, task.parameters)
    rounds = loop.rounds(make_server(recipe, 0, task), task.init(0), task.examples, evaluate=task.test)
    return loop.play(rounds, around)


def final(path: Path) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return load_file(sorted((path / "checkpoint").iterdir())[-1] / "arrays.safetensors")


def rounds_of(path: Path):
    return [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]


def events(path: Path) -> str:
    return (path / "events.jsonl").read_text()


@pytest.mark.parametrize(
    "settings", [ON, REFUSALS, {**ON, "memory.kind": "none"}], ids=["all", "refusals", "no memory"]
)
def test_a_deployment_computes_what_a_simulation_does(tmp_path, settings):
    place = Place(tmp_path, settings)
    path = place.serve()
    wanted, seen = in_process(settings), final(path)
    assert np.array_equal(seen["state.theta"], wanted.theta)
    assert np.array_equal(seen["state.contributed"], wanted.contributed)


def test_no_model_leaves_a_silo(tmp_path):
    """Whatever a silo sends but its masked change is short, and that says nothing of its update."""
    place = Place(tmp_path, ON)
    place.serve()
    changes = []
    for _, _, reply in place.wire:
        for record in reply.content.array_records.values():
            assert list(reply.content) == ["secure", "change"]
            changes.append(record["theta"].numpy())
            assert changes[-1].dtype == np.int64
    assert len(changes) == N * 4
    lengths = np.abs(np.concatenate(changes).astype(float))  # a model has few numbers: all of them together
    assert np.median(lengths) == pytest.approx(2.0**62, rel=0.6), "not masked"


def test_a_silo_that_sends_its_model_in_the_clear_is_refused(tmp_path):
    def in_the_clear(name, asked, reply):
        if name == "silo-1" and reply.has_content() and "report" in reply.content:
            reply.content["theta"] = ArrayRecord({"theta": FlowerArray(asked.content["theta"]["theta"].numpy())})
        return reply

    path = Place(tmp_path, {**ON, "rounds": 1}, in_the_clear).serve()
    assert "in the clear" in events(path)


def words_of(message: Message) -> dict:
    """What a message in the middle of a session says; nothing where it is another."""
    return dict(message.content["secure"]) if "secure" in message.content else {}


def gone(*who, step, rounds=(2,)):
    """These silos do not answer this step of these rounds."""

    def tamper(name, asked, reply):
        words = words_of(asked)
        return None if name in who and words.get("step") in step and words["round"] in rounds else reply

    return tamper


def test_a_silo_that_drops_out_before_it_sends_is_left_out(tmp_path):
    path = Place(tmp_path, ON, gone("silo-3", step=("mask",))).serve()
    assert all("No sum" not in record["reason"] for record in rounds_of(path))
    clients = Lines.of(path / "clients.jsonl")[1]
    assert "dropped out" in str(clients["advice"][3])
    assert not clients["advice"][0]


def test_three_messages_are_enough_while_nobody_drops_out(tmp_path):
    place = Place(tmp_path, {**ON, "rounds": 2}, gone("silo-3", step=("mask",)))
    place.serve()
    steps = [words_of(asked)["step"] for name, asked, _ in place.wire if name == "silo-0" and words_of(asked)]
    assert steps == ["mask", "reveal", "mask", "sign", "part", "reveal"]


def test_silos_that_drop_out_before_and_after_they_have_sent_cost_their_own_changes_alone(tmp_path, monkeypatch):
    """Of eight silos one sends nothing in round 2 and one vanishes afterwards: the six others' sum is released."""
    monkeypatch.setattr(sys.modules[__name__], "N", 8)
    early = gone("silo-3", step=("mask",))
    for late, lists in (("sign", 2), ("part", 2), ("reveal", 1)):
        after = gone("silo-5", step=(late, "reveal"))
        settings = {**ON, "task.clients": 8, "rounds": 3}
        place = Place(tmp_path / late, settings, lambda *m, after=after: early(m[0], m[1], after(*m)))
        path = place.serve()
        assert all("No sum" not in record["reason"] for record in rounds_of(path))
        advice = Lines.of(path / "clients.jsonl")[1]["advice"]
        assert [k for k in range(8) if "dropped out" in str(advice[k])] == ([3, 5] if late != "reveal" else [3])
        steps = [words_of(asked).get("step") for name, asked, _ in place.wire if name == "silo-0"]
        assert steps.count("sign") == lists
        assert "dropped out" not in str(Lines.of(path / "clients.jsonl")[2]["advice"])


def test_two_that_drop_out_release_nothing_and_are_counted_the_next_time(tmp_path):
    place = Place(tmp_path, ON, gone("silo-2", "silo-3", step=("mask",)))
    path = place.serve()
    said = [record["reason"] for record in rounds_of(path)]
    assert "No sum was released" in said[1]
    assert all("No sum" not in said[k] for k in (0, 2, 3))


def test_a_server_that_swaps_a_key_is_refused_by_silos(tmp_path):
    """Silo-3's statement is replaced by one that somebody else signed, who has put himself into the server's own keys."""
    from feduca.flower import certificates

    evil = tmp_path / "evil"
    evil.mkdir()
    certificates.make_silo_key(evil)

    def own_key(name, asked, reply):
        if name == "silo-3" and reply.has_content() and "statement" in reply.content:
            from cryptography.hazmat.primitives.serialization import load_ssh_private_key

            from feduca.privacy import keys
            from feduca.privacy.protocol import statement_of, words_of

            old = statement_of(json.loads(reply.content["statement"]["text"]))
            new = replace(old, key=keys.public(bytes(range(1, 33))))
            signer = load_ssh_private_key((evil / "key").read_bytes(), None)
            signed = replace(new, signature=keys.sign(signer, new.text))
            reply.content["statement"] = ConfigRecord({"protocol": 1, "text": json.dumps(words_of(signed))})
        return reply

    place = Place(tmp_path / "p", {**ON, "rounds": 1}, own_key)
    theirs = tmp_path / "p/d/server/keys/silo-3.pub"  # the server believes the new key; the silos do not
    pem = Keys(tmp_path / "p/d/server/keys").names()
    theirs.write_bytes((evil / "key.pub").read_bytes())
    place.grid.keys[13] = next(k for k, name in Keys(tmp_path / "p/d/server/keys").names().items() if name == "silo-3")
    assert place.grid.keys[13] not in pem
    path = place.serve()
    assert "No sum was released" in rounds_of(path)[0]["reason"]
    assert "not signed by silo-3" in place.log("silo-0")
    assert not any(reply.has_content() and "change" in reply.content for _, _, reply in place.wire)


def test_a_silo_whose_key_is_unknown_to_the_others_stops_them(tmp_path):
    place = Place(tmp_path, {**ON, "rounds": 1})
    (tmp_path / "d/silos/silo-0/peers/silo-2.pub").unlink()
    place.serve()
    assert "'silo-2', a silo whose key is not known here" in place.log("silo-0")


def ask(place: Place, name: str, **words) -> RecordDict:
    """A message of the server's own making."""
    from feduca.flower.secure_silo import said

    place.grid.nodes[99] = place.grid.nodes[10 + place.names.index(name)]
    message = Message(said(words.pop("round"), name, client=0, **words), 99, "query.secure", group_id="1")
    keys = place.grid.push_messages([message])
    (reply,) = place.grid.pull_messages(keys)
    return reply


def test_a_server_that_goes_back_and_lies_gets_no_second_sum(tmp_path):
    """After a round it asks again: for other silos, for other senders, and for what was never sent."""
    place = Place(tmp_path, {**ON, "rounds": 1})
    path = place.serve()
    run = json.loads((path / "deployment.json").read_text())["run"]
    told = [words_of(asked) for name, asked, _ in place.wire if name == "silo-0" and words_of(asked)]
    text, shares = told[0]["directory"], told[1]["shares"]
    said, weights = json.loads(text)
    fewer = json.dumps([said[:3], weights[:3]])
    first = {"run": run, "round": 1, "step": "mask", "last": 0}
    changed = {"run": run, "round": 1, "senders": json.dumps(place.names[:3]), "shares": shares}
    for words, why in (
        ({**first, "directory": fewer}, "masked for other silos already"),
        ({**first, "directory": text, "last": 1}, "which is not in"),
        ({**changed, "step": "reveal", "signatures": "{}"}, "others have sent than it said before"),
        ({**changed, "step": "sign"}, "others have sent than it said before"),
        ({**first, "round": 2, "directory": text}, "announced no key in round 2"),
    ):
        assert ask(place, "silo-0", **words).has_error()
        assert why in place.log("silo-0").splitlines()[-1]
    assert not ask(place, "silo-0", **first, directory=text).has_error()  # the very same: the very same answer


def test_a_server_that_goes_back_further_gets_no_round_begun_anew(tmp_path):
    """It asks in an old round for the same update under other keys, after the silo has lost its answers and old sessions."""
    place = Place(tmp_path, ON)
    path = place.serve()
    questions = [asked for name, asked, _ in place.wire if name == "silo-0" and "announcement" in asked.content]
    assert len(questions) == 4
    run = json.loads((path / "deployment.json").read_text())["run"]
    folder = tmp_path / "d/silos/silo-0/state/runs" / run
    assert sorted(path.name for path in folder.glob("secure-*")) == ["secure-000003.json", "secure-000004.json"]

    def keys_of(question, other_model=0.0):
        content = RecordDict(dict(question.content))
        theta = content["theta"]["theta"].numpy()
        content["theta"] = ArrayRecord({"theta": FlowerArray(theta + theta.dtype.type(other_model))})
        place.grid.nodes[98] = place.grid.nodes[10]
        (reply,) = place.grid.pull_messages(
            place.grid.push_messages([Message(content, 98, "train", group_id=question.metadata.group_id)])
        )
        return None if reply.has_error() else reply.content["statement"]["text"]

    assert keys_of(questions[0]) is None
    for answer in folder.glob("round-*"):
        answer.unlink()
    for question in questions[:2]:
        for other in (0.0, 1e-3):
            assert keys_of(question, other) is None
            assert "lies behind: this silo has masked a change in round 4" in place.log("silo-0").splitlines()[-1]
        for answer in folder.glob("round-*"):
            answer.unlink()
    assert keys_of(questions[3]) == keys_of(
        questions[3], 1e-3
    )  # of the last round: the very same keys, whatever it asks

    # Nor can it make use of a key that was announced, and left lying while the run went on.
    (folder / "secure-000003.json").unlink()
    silo = secure_silo.SecureSilo("silo-0", folder.parents[1], place.app.recipe, run)
    signed = protocol.announce("silo-0", run, 3, b"model", silo._signer())
    silo._save(signed)
    directory = next(
        words_of(a)["directory"] for n, a, _ in place.wire if words_of(a).get("round") == 3 and n == "silo-0"
    )
    said, weights = json.loads(directory)
    mine = next(k for k, words in enumerate(said) if words[1] == "silo-0")
    forged = json.dumps([[*said[:mine], words_of_statement(signed.statement), *said[mine + 1 :]], weights])
    reply = ask(place, "silo-0", run=run, round=3, step="mask", last=0, directory=forged)
    assert reply.has_error()
    assert "round 3 lies behind" in place.log("silo-0").splitlines()[-1]
    for number in (5, 6):  # on it goes
        assert silo._not_older(number) is None


def test_an_interrupted_deployment_goes_on_bit_equal(tmp_path):
    """The server dies in the middle of round 3, after silos have masked their changes, and starts again."""

    class Dies(Exception): ...

    once = []

    def dies(name, asked, reply):
        words = words_of(asked)
        if words.get("step") == "reveal" and words["round"] == 3 and not once:
            once.append(name)
            raise Dies
        return reply

    place = Place(tmp_path / "a", ON, dies)
    with pytest.raises(Dies):
        place.serve()
    path = place.serve()
    whole = Place(tmp_path / "b", ON).serve()
    for name in ("state.theta", "state.contributed"):
        assert np.array_equal(final(path)[name], final(whole)[name])
    assert all("No sum" not in record["reason"] for record in rounds_of(path))


def test_who_has_no_registered_keys_is_refused(tmp_path):
    place = Place(tmp_path, ON)
    with pytest.raises(ConfigError, match="registered keys"):
        place.serve(folder="")
    with pytest.raises(ConfigError, match="registered keys"):
        FedUCAStrategy({"privacy": {"secure_aggregation": True}})


def test_a_new_key_reaches_the_other_silos(tmp_path):
    place = Place(tmp_path, ON)
    before = (tmp_path / "d/silos/silo-0/peers/silo-1.pub").read_bytes()
    rotate(tmp_path / "d", "silo-1")
    after = (tmp_path / "d/silos/silo-0/peers/silo-1.pub").read_bytes()
    assert before != after == (tmp_path / "d/silos/silo-1/key.pub").read_bytes()
    folders.add_silo(tmp_path / "d", "late")
    assert (tmp_path / "d/silos/silo-0/peers/late.pub").is_file()
    assert {p.stem for p in (tmp_path / "d/silos/late/peers").iterdir()} == set(place.names)


def masks(words: dict, scale: float) -> dict:
    """The question for a masked change, with other weights."""
    said, weights = json.loads(words["directory"])
    return {**words, "directory": json.dumps([said, [(float.fromhex(w) * scale).hex() for w in weights]])}


def asked_to_mask(tmp_path) -> tuple[Place, dict]:
    """Silo-0 has announced its key of round 1 and was never asked for its change; and the question for that."""
    found = {}

    def keeps(name, asked, reply):
        if words_of(asked).get("step") == "mask" and name == "silo-1":
            found.update(
                {k: v for k, v in words_of(asked).items() if k in ("run", "round", "step", "directory", "last")}
            )
        return reply

    place = Place(tmp_path, {**ON, "rounds": 1}, keeps)
    first = place.grid.nodes[10]
    flower = first.app

    def deaf(message, context):
        if "secure" in message.content:
            raise TimeoutError
        return flower(message, context)

    first.app = deaf
    place.serve()
    first.app = flower
    return place, found


def test_a_server_cannot_try_weights_until_it_knows_how_long_an_update_is(tmp_path):
    """Whether weight * update can be encoded is an answer about the update: nothing is computed with weights that are none."""
    place, words = asked_to_mask(tmp_path)
    path = next((tmp_path / "d/silos/silo-0/state/runs").glob("*/update-000001.npy"))
    said = []
    for length in (1e-3, 1e30):  # a short update and one that cannot be encoded
        np.save(path, np.full(np.load(path).shape, length))
        for scale in (2.0**40, 2.0**-40):
            reply = ask(place, "silo-0", **masks(words, scale))
            said.append(str(reply.error.reason).partition(",")[0])
            assert "shares of 1" in place.log("silo-0").splitlines()[-1]
    reply = ask(place, "silo-0", **words)  # the good directory: the update of 1e30 is refused under the same name ...
    said.append(str(reply.error.reason).partition(",")[0])
    assert "can be added up" in place.log("silo-0").splitlines()[-1]
    assert len(set(said)) == 1, said
    np.save(path, np.full(np.load(path).shape, 1e-3))
    assert ask(place, "silo-0", **masks(words, 0.9)).has_error()  # ... and is asked of that directory alone
    assert "sent once" in place.log("silo-0").splitlines()[-1]
    assert not ask(place, "silo-0", **words).has_error()


def test_two_processes_mask_one_update_for_one_directory(tmp_path, monkeypatch):
    """Both have read the session before either has written it, unless they wait for each other."""
    import threading

    place, words = asked_to_mask(tmp_path)
    both, read = threading.Barrier(2), secure_silo.SecureSilo._session

    def slow(self, round):
        session = read(self, round)
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(1)
        return session

    monkeypatch.setattr(secure_silo.SecureSilo, "_session", slow)
    silo = secure_silo.SecureSilo("silo-0", tmp_path / "d/silos/silo-0/state", place.app.recipe, words["run"])
    said = []

    def go(scale):
        asked = secure_silo.said(1, "silo-0", **{k: v for k, v in masks(words, scale).items() if k != "round"})
        try:
            said.append("change" in silo.answer(asked, 4))
        except Exception as error:
            said.append(type(error).__name__)

    threads = [threading.Thread(target=go, args=(scale,)) for scale in (1.0, 0.9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, said)) == ["True", "Untrusted"]


def test_old_sessions_go_by_their_number(tmp_path):
    from feduca.flower.secure_silo import LAST

    place, words = asked_to_mask(tmp_path)
    folder = next((tmp_path / "d/silos/silo-0/state/runs").iterdir())
    for round in (999_998, 999_999, LAST):  # of a later time: the server went back
        for name in ("update", "secure"):
            ending = {"update": "npy", "secure": "json"}[name]
            (folder / f"{name}-{round:06d}.{ending}").write_bytes(b"")
    assert not ask(place, "silo-0", **words).has_error()
    there = sorted(path.name for path in [*folder.glob("update-*"), *folder.glob("secure-*")])
    assert there == [f"{n}-{r}.{e}" for n, e in (("secure", "json"), ("update", "npy"))
                     for r in ("000001", "1000000", "999999")]  # fmt: skip
    for round in (0, -1, LAST + 1, 10**300):
        assert ask(place, "silo-0", **{**words, "round": round if abs(round) < 2**60 else 2**60}).has_error()
        assert "announced no key" in place.log("silo-0").splitlines()[-1]


def test_what_a_silo_that_leaves_had_added_is_not_called_erased(tmp_path):
    def leaves(name, asked, reply):
        if name == "silo-3" and words_of(asked).get("step") == "reveal":
            (tmp_path / "d/silos/silo-3/state/leave").write_text("erase")
        return reply

    said = events(Place(tmp_path, {**ON, "rounds": 2}, leaves).serve())
    assert "has left for good" in said
    assert "its update is erased" not in said
    assert "secure sums keep the update" in said


def test_a_deployed_run_is_not_rolled_back(tmp_path):
    from typer.testing import CliRunner

    from feduca.cli.main import app as cli

    path = Place(tmp_path, {**ON, "checkpoint.history": 4, "checkpoint.every_s": 0}).serve()
    before = (path / "deployment.json").read_bytes()
    done = CliRunner().invoke(cli, ["rollback", str(path), "2"])
    assert done.exit_code != 0
    assert "privacy.secure_aggregation, whose sums cannot go back" in str(done.exception) + done.output
    assert (path / "deployment.json").read_bytes() == before
    assert len(rounds_of(path)) == 4
