"""Unit files: a user of its own, restarts, limits, and a file system of which only what must be written can be.

That is a silo's `state/`, and at the server its folder without the files that never change or that root runs.
"""

from __future__ import annotations

from feduca.flower.folder import ServerFolder, SiloFolder
from feduca.flower.install.places import PLACE, PROGRAM, environment, paths

MEMORY = {"server": "8G", "silo": "16G"}
FIXED = ("server.toml", "server.key", "server.crt", "ca.crt", "keys", "app", "start.sh", "run.sh", "bundle", "venv")


def server(server: ServerFolder) -> dict[str, str]:
    unit = "feduca-server.service"
    command = f"{PROGRAM} deploy superlink --run {PLACE}/server"
    told = list(server.settings.values())
    return {unit: _unit(unit, "the server of a federation", command, "server", "server", (*FIXED, unit), told)}


def silo(silo: SiloFolder) -> dict[str, str]:
    unit, what = f"feduca-silo-{silo.name}.service", f"silo {silo.name} of a federation"
    command = f"{PROGRAM} deploy silo {PLACE}/{silo.name}"
    return {unit: _unit(unit, what, command, silo.name, f"{silo.name}/state", (), list(silo.config.values()))}


def _unit(
    unit: str, what: str, command: str, name: str, written: str, fixed: tuple[str, ...], told: list[object]
) -> str:
    home = f"{PLACE}/{name}"
    variables = "\n".join(f"Environment={key}={value}" for key, value in environment(f"{PLACE}/{written}").items())
    places = " ".join(f"-{home}/{file}" for file in fixed)  # "-": where it is there
    read_only = f"ReadOnlyPaths={places}\n" * bool(fixed)
    homes = any(path.startswith(("/home/", "/root/")) for path in paths(dict(enumerate(map(str, told)))))  # type: ignore[arg-type]
    return f"""# As root, in this folder (docs/install-systemd.md):
#   install -o root -g root -m 644 {unit} /etc/systemd/system/
#   systemctl daemon-reload; systemctl enable --now {unit}

[Unit]
Description=feduca: {what}
Wants=network-online.target time-sync.target
After=network-online.target time-sync.target
StartLimitIntervalSec=0

[Service]
ExecStart={command}
User=feduca
Group=feduca
WorkingDirectory={home}
StateDirectory=feduca/{written}
StateDirectoryMode=0700
UMask=0077
{variables}
Restart=always
RestartSec=10
KillMode=mixed
TimeoutStopSec=30
MemoryMax={MEMORY["server" if fixed else "silo"]}
TasksMax=1024
LimitNOFILE=65536
LimitCORE=0

# Of the file system only StateDirectory can be written, and of that not what is ReadOnlyPaths.
ProtectSystem=strict
{read_only}ProtectHome={"read-only" if homes else "yes"}
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
