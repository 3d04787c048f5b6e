"""A SuperNode without processes: Flower's own state and object store behind our guard, and every byte that would leave."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import start_client_internal as flower
from flwr.supernode.nodestate import NodeStateFactory

from feduca.flower import approval, codec, launch
from feduca.flower import folder as folders
from feduca.recipes.schema import load
from feduca.types import Announcements, LocalSpec

NODE = 11
RECIPE = {"name": "t", "rounds": 9, "local": {"epochs": 2, "batch_size": 5}, "task": {"clients": 2}}


SECRET = np.array([3.14159, 2.71828, 1.41421, 1.73205])  # what a thief sends
MODEL = SECRET.tobytes()
WORD = "Mrs Example, born 1950"


class SuperNode:
    """One silo's, in a deployment of two; `app` answers in this process what the guard lets through."""

    def __init__(self, place: Path, monkeypatch: Any, recipe: dict[str, Any] | None = None) -> None:
        self.recipe = load({**RECIPE, **(recipe or {})})
        folders.init(place / "d", self.recipe, ["silo-0", "silo-1"])
        self.silo = place / "d" / "silos" / "silo-0"
        self.code = place / "d" / "server" / "app"
        for name in ("_pull_and_store_message", "_push_messages", "_verify_fab"):
            monkeypatch.setattr(flower, name, getattr(flower, name))
        objects = ObjectStoreFactory()
        self.store, self.state = objects.store(), NodeStateFactory(objects).state()
        self.state.set_node_id(NODE)
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        launch.guard(self.silo)
        self.fetched = 0  # objects of messages
        self.reached: list[Message] = []  # messages that came to the app
        self.context: Any = None

    @property
    def log(self) -> str:
        path = self.silo / "state" / "log.jsonl"
        return path.read_text() if path.is_file() else ""

    def policy(self, text: str) -> None:
        (self.silo / "policy.toml").write_text(text)

    def ask(
        self,
        content: RecordDict,
        app: Any,
        kind: str = "train",
        run: int = 7,
        bundle: bytes | None = None,
        **settings: Any,
    ) -> bytes:
        """What leaves the silo, all of it, when a server sends this."""
        bundle = (self.silo / approval.APPROVED).read_bytes() if bundle is None else bundle
        message = Message(content, NODE, kind, group_id="1")
        message.metadata.__dict__["_run_id"] = run
        message.metadata.__dict__["_message_id"] = message.object_id
        objects = {key: part.deflate() for key, part in get_all_nested_objects(message).items()}
        tree = get_object_tree(message)
        assert message.metadata.message_id in objects
        bare = Message(metadata=message.metadata, content=RecordDict())

        def pull(number: int, key: str) -> bytes:
            self.fetched += 1
            return objects[key]

        told = Run.create_empty(run)
        told.override_config = dict(settings)
        tasks = len(self.state.get_tasks())
        number = flower._pull_and_store_message(
            state=self.state, object_store=self.store, node_config={"silo": "silo-0", "folder": str(self.silo / "state")},
            receive=lambda: (bare, tree), get_run=lambda number: told, pull_object=pull,
            get_fab=lambda wanted, number: SimpleNamespace(content=bundle, hash_str="", verifications={}),
            confirm_message_received=lambda number, key: None, trusted_entities=None,
        )  # fmt: skip
        assert number == run
        if len(self.state.get_tasks()) > tasks:  # it came through
            self.reached.append(message)
            self.context = self.state.get_run_series_context(told.series_id)
            try:
                reply = app(
                    message, Context(run, NODE, self.context.node_config, RecordDict(), self.context.run_config)
                )
            except Exception as error:  # in Flower's words
                reply = Message(Error(code=2, reason=f"{type(error)}:<'{error}'>"), reply_to=message)
            flower._insert_message(reply, self.state, self.store)
        return self._sent()

    def _sent(self) -> bytes:
        pieces: list[bytes] = []

        def send(message: Any, tree: Any, seconds: float) -> tuple[set[str], str]:
            pieces.extend((message_to_proto(message).SerializeToString(), tree.SerializeToString()))
            return {part.object_id for part in _parts(tree)}, "session"

        flower._push_messages(
            state=self.state,
            object_store=self.store,
            send=send,
            push_object=lambda run, session, key, data: pieces.append(data),
        )
        return b"".join(pieces)


def _parts(tree: Any) -> list[Any]:
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

    return list(iterate_object_tree(tree))


def announcement(round: int, theta: np.ndarray, run: str = "run-1", local: LocalSpec | None = None) -> RecordDict:
    """What a server sends to silo-0 in a round."""
    one = np.array([0.3])
    asked = Announcements(run, round, np.array([0]), theta, one, one, np.ones(1), local or LocalSpec(2, 5))
    return codec.announcement(asked, "silo-0")


def training(round: int, run: str = "run-1", **local: Any) -> RecordDict:
    """The message that asks for a round; `local` are settings of the training."""
    asked = LocalSpec(**{"epochs": 2, "batch_size": 5, **local}) if local else None
    return announcement(round, np.zeros(4), run, asked)


def thief(message: Message, context: Context) -> Message:
    """An app that was approved and heeds nothing: it sends a model and what it read, as if the silo had joined."""
    said = dict(message.content["announcement"]) if "announcement" in message.content else {}
    words = {
        "protocol": 1,
        "status": "joined",
        "word": WORD,
        **{k: v for k, v in said.items() if k in ("run", "round")},
    }
    return Message(
        RecordDict({"report": ConfigRecord(words), "theta": ArrayRecord({"theta": Array(SECRET)})}), reply_to=message
    )


def only_the_decision(sent: bytes) -> bool:
    """Whether nothing left but that the silo declined."""
    return b"declined: policy" in sent and MODEL not in sent and WORD.encode() not in sent and b"silo-0" not in sent
