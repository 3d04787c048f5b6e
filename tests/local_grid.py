"""A Flower Grid without processes: messages are really serialised, and answered by ClientApps in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity


def through_the_wire(message: Message) -> Message:
    """The message after the bytes that Flower would send."""
    contents = {key: item.deflate() for key, item in get_all_nested_objects(message).items()}
    key = message.object_id
    copy = inflate_object_from_contents(key, contents)
    copy.metadata.__dict__["_message_id"] = key
    return copy  # type: ignore[return-value]


@dataclass
class Node:
    app: ClientApp
    config: dict
    name: str = ""  # as registered
    run_config: dict = field(default_factory=dict)
    tamper: Callable[[Message, Message], Message | None] = lambda asked, reply: reply


@dataclass
class LocalGrid(Grid):
    """Nodes by id; answers when replies are pulled."""

    nodes: dict[int, Node]
    sent: dict[str, Message] = field(default_factory=dict)

    def __post_init__(self) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # what Flower sets in an app's process

    def set_run(self, run) -> None: ...

    @property
    def run(self):
        return SimpleNamespace(run_id=1)

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=key, name=node.name) for key, node in self.nodes.items()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        keys: list[str] = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            keys.append(message.object_id)
            self.sent[keys[-1]] = through_the_wire(message)
        return keys

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = []
        for key in message_ids:
            asked = self.sent.pop(key, None)
            if asked is None:
                continue
            node = self.nodes.get(asked.metadata.dst_node_id)
            if node is None:
                continue
            context = Context(
                run_id=1, node_id=1, node_config=node.config, state=RecordDict(), run_config=node.run_config
            )
            try:
                reply = node.app(message=asked, context=context)
            except Exception as error:
                reply = Message(Error(code=0, reason=f"{type(error)}:<'{error}'>"), reply_to=asked)
            tampered = node.tamper(asked, reply)
            if tampered is not None:
                replies.append(through_the_wire(tampered))
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(list(messages)))
