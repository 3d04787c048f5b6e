"""A silo's own policy on real SuperNodes, against an app that its operator approved and that heeds nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from feduca.flower import deploy
from flower_world import World, reasons, statuses, wait_for
from tapped import Tapped

pytestmark = pytest.mark.slow

EVIL = '''

def greedy(message, context):
    """Sends a model whatever the silo's own code decided, and something that it read beside."""
    reply = honest(message, context)
    told = json.loads(open(os.path.join(str(context.node_config["folder"]), "secret.json")).read())
    reply.content["theta"] = ArrayRecord({"theta": Array(np.array(told["numbers"]))})
    reply.content["report"] = ConfigRecord({**reply.content["report"], "status": "joined"})
    body = json.loads(reply.content["report"]["body"])
    body["words"]["status"], body["words"]["reason"] = ["joined"], [told["word"]]
    reply.content["report"]["body"] = json.dumps(body)
    return reply


client = ClientApp()
client.query()(hello)
client.train()(greedy)
'''


def test_a_policy_holds_against_an_approved_app_that_heeds_nothing(tmp_path):
    world = World(tmp_path)
    wire = Tapped(world.server)
    process = None
    try:
        code = world.place / "server" / "app" / "deployed.py"
        code.write_text(code.read_text() + EVIL)
        path = world.recipe({"rounds": 3, "participation.rule": "always", "mechanism.name": "fedavg"})
        silos = [world.place / "silos" / f"silo-{k}" for k in range(3)]
        rng = np.random.default_rng(0)
        secrets = []
        for silo in silos:
            told = {"numbers": rng.normal(size=4).tolist(), "word": f"patient-{rng.integers(10**9)}"}
            secrets.append((np.array(told["numbers"]).tobytes(), told["word"].encode()))
            (silo / "state" / "secret.json").write_text(json.dumps(told))
        (silos[1] / "policy.toml").write_text("rounds = 1\n")
        (silos[2] / "policy.toml").write_text("least_gain = 0.9\n")
        text = (silos[1] / "silo.toml").read_text()
        (silos[1] / "silo.toml").write_text(text.replace(world.server.address, wire.address))

        world.start_superlink()
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-m", "feduca", "deploy", "silo", str(silos[0])],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env,
        )  # fmt: skip
        for name in ("silo-1", "silo-2"):
            world.start_silo(name)
        world.wait_online()
        deploy.run(world.server, seconds=900)

        assert [row[1:] for row in reasons(path)[1:]] == [["declined: policy"] * 2] * 2
        assert statuses(path) == [["joined"] * 3, ["joined", "refused", "refused"], ["joined", "refused", "refused"]]
        # The wire: what the app stole left in round 1, which the policy allows, and never again.
        numbers, word = secrets[1]
        said = wire.said
        assert said.count(numbers) == 1  # so this is how it would look
        assert said.count(word) == 1
        after = said[said.index(b"declined: policy") :]
        assert numbers not in after
        assert word not in after
        assert after.count(b"declined: policy") >= 2
        assert b"silo-1" not in after  # not even its name: nothing of a report
        sent = [json.loads(line) for line in (silos[1] / "state" / "sent.jsonl").read_text().splitlines()]
        assert [line["what"] for line in sent] == ["words", "model", "decision", "decision"]
        log = (silos[2] / "state" / "log.jsonl").read_text()
        assert "that this silo's policy has not judged: nothing of it left" in log
        assert json.loads((silos[1] / "state" / "ledger.json").read_text())["worked"] == 1

        # A policy that is wrong stops a running silo at the next message, in one line.
        (silos[0] / "policy.toml").write_text("vetoo = true\n")
        world.recipe({"rounds": 1, "participation.rule": "always", "mechanism.name": "fedavg"}, silos_timeout=60.0)
        number = deploy.submit(world.server, again=True)
        assert number
        assert wait_for(lambda: process.poll() is not None, 240, "silo-0 to stop")
        assert process.returncode == 2
        told = process.stdout.read()
        assert told.splitlines()[-1] == (f"feduca: {silos[0]}/policy.toml: unknown key 'vetoo'; did you mean 'veto'?")
    finally:
        if process is not None:
            if process.poll() is None:
                process.terminate()
                process.wait(60)
            process.stdout.close()
        world.stop()
        wire.close()
