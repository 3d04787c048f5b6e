"""Unit files: a user of its own, restarts, limits, and a file system of which only the folder itself can be written."""

from __future__ import annotations

from feduca.flower.folder import ServerFolder, SiloFolder
from feduca.flower.install.places import PLACE, PROGRAM, environment, paths

MEMORY = {"server": "8G", "silo": "16G"}


def server(server: ServerFolder) -> dict[str, str]:
    fixed = ("server.key", "server.crt", "ca.crt", "app")
    command = f"{PROGRAM} deploy superlink --run {PLACE}/server"
    unit = _unit("the server of a federation", command, "server", fixed, "server", list(server.settings.values()))
    return {"feduca-server.service": unit}


def silo(silo: SiloFolder) -> dict[str, str]:
    command = f"{PROGRAM} deploy silo {PLACE}/{silo.name}"
    unit = _unit(
        f"silo {silo.name} of a federation", command, silo.name, ("key", "ca.crt"), "silo", [*silo.config.values()]
    )
    return {f"feduca-silo-{silo.name}.service": unit}


def _unit(what: str, command: str, name: str, fixed: tuple[str, ...], kind: str, told: list[object]) -> str:
    home = f"{PLACE}/{name}"
    variables = "\n".join(f"Environment={key}={value}" for key, value in environment(home).items())
    read_only = " ".join(f"{home}/{file}" for file in fixed)
    homes = any(path.startswith(("/home/", "/root/")) for path in paths(dict(enumerate(map(str, told)))))  # type: ignore[arg-type]
    return f"""[Unit]
Description=feduca: {what}
Wants=network-online.target time-sync.target
After=network-online.target time-sync.target
StartLimitIntervalSec=0

[Service]
ExecStart={command}
User=feduca
Group=feduca
WorkingDirectory={home}
StateDirectory=feduca/{name}
StateDirectoryMode=0700
UMask=0077
{variables}
Restart=always
RestartSec=10
KillMode=mixed
TimeoutStopSec=30
MemoryMax={MEMORY[kind]}
TasksMax=1024
LimitNOFILE=65536
LimitCORE=0

# Of the file system only StateDirectory can be written, and of that not what never changes while the program runs.
ProtectSystem=strict
ReadOnlyPaths={read_only}
ProtectHome={"read-only" if homes else "yes"}
PrivateTmp=yes
PrivateDevices=yes
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
ProtectProc=invisible
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RemoveIPC=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
# A GPU: PrivateDevices=no. MemoryDenyWriteExecute cannot be set: parts of the program are compiled as it runs.

[Install]
WantedBy=multi-user.target
"""
