"""A deployment of numpy_task's silos, one of which misbehaves when the test says so.

A silo looks for `mischief.json` in its folder: `{"2": "shape", ...}` says what goes wrong in which round. Where there is one, it
keeps a digest of every model that it was sent, in `sent.json`.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from feduca.flower import client_app, server_app
from feduca.recipes.schema import load
from numpy_task import NumpyTask


class NumpyApp:
    recipe = load(Path(__file__).with_name("recipe.toml"))

    def server(self, config):
        return NumpyTask(self.recipe.task.clients)

    def silo(self, name, index, config):
        return NumpyTask(self.recipe.task.clients)


app = NumpyApp()
server = server_app(app)
honest = client_app(app)
client = ClientApp()


@client.query()
def hello(message: Message, context: Context) -> Message:
    return honest(message, context)


@client.query("secure")
def secure(message: Message, context: Context) -> Message:
    folder = Path(str(context.node_config["folder"]))
    words = message.content["secure"]
    plan = folder / "mischief.json"
    what = json.loads(plan.read_text()).get(str(words["round"])) if plan.is_file() else None
    if what == f"gone before {words['step']}":
        raise RuntimeError("this silo's disk is full")
    return honest(message, context)


@client.train()
def train(message: Message, context: Context) -> Message:
    folder = Path(str(context.node_config["folder"]))
    round = int(message.content["announcement"]["round"])
    plan = folder / "mischief.json"
    what = json.loads(plan.read_text()).get(str(round)) if plan.is_file() else None
    told = message.content["theta"]["theta"].numpy()
    if plan.is_file():
        sent = folder / "sent.json"
        known = json.loads(sent.read_text()) if sent.is_file() else {}
        sent.write_text(json.dumps({**known, str(round): hashlib.sha256(told.tobytes()).hexdigest()}))
    if what in ("slow", "hang"):
        (folder / f"busy-{round}").write_text(str(os.getpid()))
        time.sleep(15 if what == "slow" else 95)
    reply = honest(message, context)
    if what == "crash":
        raise RuntimeError("this silo's disk is full")
    content = reply.content
    theta = content["theta"]["theta"].numpy() if "theta" in content else told
    if what == "shape":
        content["theta"] = ArrayRecord({"theta": Array(np.zeros(len(theta) + 1))})
        content["report"]["status"] = "joined"
    elif what == "nan":
        content["theta"] = ArrayRecord({"theta": Array(np.full_like(theta, np.nan))})
        content["report"]["status"] = "joined"
    elif what == "withhold" and "theta" in content:
        content["theta"] = ArrayRecord({"theta": Array(told)})
    elif what is not None and what.startswith("length ") and "theta" in content:
        far = float(what.removeprefix("length ")) / np.sqrt(theta.size)
        content["theta"] = ArrayRecord({"theta": Array((told + far).astype(theta.dtype))})
    elif what == "old round":
        content["report"] = ConfigRecord({**content["report"], "round": round - 1})
    elif what == "another's name":
        content["report"] = ConfigRecord({**content["report"], "silo": "silo-0"})
    return reply
