"""The silo's half of a deployment, as a Flower ClientApp.

Every message starts a new process on the silo, so everything a silo remembers is on its disk (`store.py`). Its operator
configures it with `--node-config`: `silo` (its name), `folder` (where it keeps its things), and whatever the app's task needs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod

from feduca._version import __version__
from feduca.errors import ConfigError
from feduca.flower import codec
from feduca.flower.app import App, OneSilo
from feduca.flower.failures import Declined, discreet
from feduca.flower.mods import around_models
from feduca.flower.policy import Policy, behave, limited
from feduca.flower.policy import read as read_policy
from feduca.flower.secure_silo import SecureSilo
from feduca.flower.silo import kept_out, respond
from feduca.flower.store import SiloStore
from feduca.privacy.protocol import words_of
from feduca.recipes.build import check_confidence


def client_app(app: App, mods: Sequence[Mod] = ()) -> ClientApp:
    """The ClientApp of `app`; `mods` of Flower's, such as `LocalDpMod`, work on the models that silos send."""
    flower = ClientApp()

    @flower.query()
    def hello(message: Message, context: Context) -> Message:
        name, folder = identity(context.node_config)
        with discreet(folder, silo=name):
            codec._config(message.content, "hello")
            if (out := kept_out(SiloStore(folder), read_policy(Path(folder).parent))) is not None:
                raise Declined(out.said)
            return Message(codec.hello_reply(introduce(app, name, context.node_config)), reply_to=message)

    @flower.train(mods=[around_models(mod) for mod in mods])
    def train(message: Message, context: Context) -> Message:
        name, folder = identity(context.node_config)
        with discreet(folder, silo=name, round=message.metadata.group_id):
            index = int(dict(message.content["announcement"]).get("client", 0))  # type: ignore[call-overload]
            policy = read_policy(Path(folder).parent)
            task = prepared(app, name, index, context.node_config, policy)
            asked = codec.read_announcement(message.content, name, task.size)
            how = behave(app.recipe, app.recipe.seeds[0], task, policy)
            answer = respond(name, SiloStore(folder), task, how, asked, policy, app.recipe)
            goes = {"leave": answer.leave, "erase": answer.erase, "key": None}
            if app.recipe.privacy.secure_aggregation and answer.report.joined[0]:
                silo, new = secure(app, name, folder, asked.run), codec.host(answer.report.theta)[0]
                goes["key"] = json.dumps(words_of(silo.announce(asked, codec.host(asked.theta), new)))
            content = codec.report(answer.report, asked.run, name, **goes, share=how.share)
            return Message(content, reply_to=message)

    @flower.query("secure")
    def in_between(message: Message, context: Context) -> Message:
        name, folder = identity(context.node_config)
        with discreet(folder, silo=name, round=message.metadata.group_id):
            words = codec._config(message.content, "secure")
            task = OneSilo(app.silo(name, int(words.get("client", 0)), context.node_config), name)
            answer = secure(app, name, folder, str(words.get("run", ""))).answer(message.content, task.parameters)
            return Message(answer, reply_to=message)

    return flower


def secure(app: App, name: str, folder: str, run: str) -> SecureSilo:
    """This silo's part of secure aggregation; only where the recipe that it has approved says so."""
    if not app.recipe.privacy.secure_aggregation:
        raise ConfigError("the recipe says nothing of secure aggregation; whoever asks for it runs another")
    return SecureSilo(name, folder, app.recipe, run)


def introduce(app: App, name: str, config: Mapping[str, Any]) -> codec.Hello:
    """What the silo called `name` says of itself."""
    task = prepared(app, name, 0, config, read_policy(Path(identity(config)[1]).parent))
    check_confidence(app.recipe, task)  # a server without data may not know the metric: refuse before the first round
    return codec.Hello(
        silo=name,
        examples=int(task.examples[0]),
        size=task.size,
        recipe=app.recipe.hash(),
        feduca=__version__,
        flwr=version("flwr"),
        clock=time.time(),
    )


def prepared(app: App, name: str, index: int, config: Mapping[str, Any], policy: Policy) -> OneSilo:
    """The task of the silo called `name`, if it can do what the recipe asks: else that is said before the first round."""
    task = limited(app.silo(name, index, config), policy.examples)
    if app.recipe.privacy.dp != "off" and not callable(getattr(task, "train_private", None)):
        raise ConfigError(
            f"privacy.dp is {app.recipe.privacy.dp!r}, and the app's {type(task).__name__} has no method `train_private` that"
            " clips examples' gradients; give it one (types.Task), or set privacy.dp = 'off' in the app's recipe.toml"
        )
    return OneSilo(task, name)


def identity(config: Mapping[str, Any]) -> tuple[str, str]:
    """A silo's name and folder from its node configuration."""
    name, folder = config.get("silo"), config.get("folder")
    if not name or not folder:
        raise ConfigError(
            "the SuperNode's configuration lacks its silo's name or folder;"
            ' start it with --node-config \'silo="NAME" folder="PATH"\', or with `feduca deploy silo`'
        )
    return str(name), str(folder)
