"""`feduca deploy check` at a silo: does the approved app find and read this silo's data? In a process of its own.

    python -m feduca.flower.rehearse SILO_FOLDER

unpacks the approved app to a temporary folder, asks it who it is as the server would, and prints one line of JSON.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import traceback
import zipfile
from pathlib import Path
from typing import Any

from feduca.flower import approval
from feduca.flower.folder import read_silo


def rehearse(folder: Path) -> dict[str, Any]:
    """`examples`, or `error` in the app's own words, or nothing where the app has no introduction."""
    from flwr.app import Context, Message, RecordDict
    from flwr.common.config import get_fab_config
    from flwr.supercore.task_identity import TaskIdentity

    from feduca.flower import codec, failures

    silo = read_silo(folder)
    bundle = folder / approval.APPROVED
    if not bundle.is_file() or approval.fingerprint(bundle.read_bytes()) != silo.app:
        return {"error": f"{bundle} is not the app that silo.toml approves"}
    config = {"silo": silo.name, "folder": str(silo.state), **silo.config}
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    said: list[str] = []
    failures.note = lambda folder, name, text, **about: said.append(text) or text  # here the operator is listening
    with tempfile.TemporaryDirectory(prefix="feduca-rehearsal-") as place:
        with zipfile.ZipFile(bundle) as file:
            file.extractall(place)
        sys.path.insert(0, place)
        module, _, name = get_fab_config(bundle)["tool"]["flwr"]["app"]["components"]["clientapp"].partition(":")
        try:
            client = getattr(importlib.import_module(module), name)
            asked = Message(codec.hello_request("rehearsal"), 1, "query")
            reply = client(asked, Context(1, 1, config, RecordDict(), {}))
            return {"examples": codec.read_hello(reply.content).examples}
        except Exception as error:
            if "No query function" in str(error):
                return {}
            return {"error": said[-1] if said else " ".join("".join(traceback.format_exception_only(error)).split())}


if __name__ == "__main__":
    print(json.dumps(rehearse(Path(sys.argv[1]))))
