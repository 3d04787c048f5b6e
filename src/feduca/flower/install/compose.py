"""Compose files: one service each, without privileges, on a read-only root. Of its folder it can write `state/` alone.

Neither compose.yaml nor what the image is built from can be written from within, nor can anything be put beside them: compose
reads compose.override.yaml and .env unasked. A silo sees its folder as it is, so that what its operator approves counts at once.
The server's programs write beside what they read: theirs is `state/`, with what is given mounted into it.
"""

from __future__ import annotations

import json

from feduca._version import __version__
from feduca.flower.folder import ServerFolder, SiloFolder
from feduca.flower.install.places import PLACE, USER, environment, paths

Mount = tuple[str, str, bool]  # from, to, read-only
GIVEN = ("server.toml", "server.key", "server.crt", "ca.crt", "keys", "app")  # of the server's folder


def server(server: ServerFolder) -> dict[str, str]:
    port = server.port
    ports = [f"{port}:{port}"]
    probe = ""
    if server.operate.metrics is not None:
        seen = server.operate.metrics[1]
        ports.append(f"127.0.0.1:{seen}:{seen}")
        look = f"import urllib.request as r; r.urlopen('http://127.0.0.1:{seen}/health', timeout=20)"
        probe = f"""    healthcheck:
      test: {json.dumps(["CMD", "/opt/feduca/bin/python", "-c", look])}
      interval: 60s
      timeout: 30s
      start_period: 300s
"""
    published = "    ports:\n" + "".join(f"      - {json.dumps(one)}\n" for one in ports)
    command = ["deploy", "superlink", "--run", f"{PLACE}/server"]
    given = paths({key: value for key, value in server.settings.items() if key != "out"})
    home = f"{PLACE}/server"
    mounts = [("./state", home, False), *((f"./{part}", f"{home}/{part}", True) for part in GIVEN)]
    return {"compose.yaml": _file("server", command, home, mounts, given, published + probe, "4g"), "state/.keep": ""}


def silo(silo: SiloFolder) -> dict[str, str]:
    command = ["deploy", "silo", f"{PLACE}/{silo.name}"]
    home = f"{PLACE}/{silo.name}"
    mounts = [("./", home, True), ("./state", f"{home}/state", False)]
    return {"compose.yaml": _file(silo.name, command, f"{home}/state", mounts, paths(silo.config), "", "8g")}


def _file(
    name: str, command: list[str], written: str, own: list[Mount], data: list[str], more: str, memory: str
) -> str:
    variables = "".join(f"      {key}: {json.dumps(value)}\n" for key, value in environment(written).items())
    mounts = [*own, *((path, path, True) for path in data)]
    volumes = "".join(
        f"      - type: bind\n        source: {json.dumps(source)}\n        target: {json.dumps(target)}\n"
        f"        read_only: {json.dumps(fixed)}\n"
        for source, target, fixed in mounts
    )
    return f"""# {name}: `docker compose up --detach` in this folder, whose files belong to user {USER} (docs/install-compose.md).
services:
  feduca:
    image: "feduca:{__version__}"
    build:
      context: ./bundle
      dockerfile: Containerfile
    command: {json.dumps(command)}
    user: "{USER}:{USER}"
    init: true
    restart: unless-stopped
    stop_grace_period: 30s
    read_only: true
    cap_drop: ["ALL"]
    security_opt: ["no-new-privileges:true"]
    pids_limit: 1024
    mem_limit: {memory}
    tmpfs: ["/tmp:mode=1777,size=1g"]
    environment:
{variables}    volumes:
{volumes}{more}"""
