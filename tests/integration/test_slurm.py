"""A sweep on a real Slurm of one node, started here where its programs are (Debian: slurmctld slurmd slurm-client munge)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from unit.studies.test_jobs import FAILS, FINE, KILLED, sweep

pytestmark = pytest.mark.slow
CONF = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldPort={first}
SlurmdPort={second}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
ReturnToService=2
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def _free() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    """The environment in which sbatch reaches it."""
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    for program in ("munged", "slurmctld", "slurmd", "sbatch", "squeue"):
        if shutil.which(program, path=path) is None:
            pytest.skip(f"{program} is not installed: apt-get install slurmctld slurmd slurm-client munge")
    if os.getuid() != 0:
        pytest.skip("slurmd starts jobs as root only")
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # munged wants a folder that everybody can look into
    folder.chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    about = {"host": socket.gethostname().split(".")[0], "user": "root", "folder": folder}
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(first=_free(), second=_free(), **about))
    env = {**os.environ, "PATH": path, "SLURM_CONF": str(conf)}
    munge = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    commands = [
        ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *munge],
        ["slurmctld", "-D", "-f", str(conf)],
        ["slurmd", "-D", "-f", str(conf)],
    ]
    started, log = [], (folder / "daemons.log").open("w")
    try:
        for command in commands:
            started.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
            time.sleep(1)
        until, seen = time.monotonic() + 60, ""
        while "idle" not in seen and time.monotonic() < until:
            time.sleep(1)
            seen = subprocess.run(["sinfo", "-h", "-o", "%T"], env=env, capture_output=True, text=True).stdout
        if "idle" not in seen:
            pytest.skip(f"Slurm does not start here: {(folder / 'daemons.log').read_text()[-500:]}")
        yield {"PATH": path, "SLURM_CONF": str(conf)}
        subprocess.run(["scancel", "--me"], env=env, check=False)
    finally:
        for one in reversed(started):
            one.terminate()
            with suppress(subprocess.TimeoutExpired):
                one.wait(10)
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


def test_a_sweep_on_slurm_one_of_whose_jobs_is_killed_gives_the_summary_of_one_process(slurm, tmp_path):
    _, alone = sweep(tmp_path, FINE, "alone")
    where = ("--on", "slurm", "--slurm", "partition=main,time=10,cpus=1")
    said, cells = sweep(tmp_path, KILLED, "slurm", *where, **slurm)
    assert cells == alone
    assert (tmp_path / "killed").exists()
    assert "2 submitted" in said
    said, cells = sweep(tmp_path, FAILS, "fails", *where, code=1, **slurm)
    assert [cell["labels"]["method"] for cell in cells] == ["average", "the average again"]
    assert "mine: ArithmeticError" in said.splitlines()[-1]
    until, left = time.monotonic() + 60, "?"
    while left and time.monotonic() < until:  # no job is left behind, once those that are done have ended
        left = subprocess.run(["squeue", "-h"], env={**os.environ, **slurm}, capture_output=True, text=True).stdout
        time.sleep(1)
    assert left == ""


def test_what_slurm_refuses_is_told_in_a_line(slurm, tmp_path):
    (tmp_path / "own.toml").write_text('extends = "quickstart"\nrounds = 1\n')
    words = ["reproduce", "own.toml", "--on", "slurm", "--slurm", "partition=none"]
    done = subprocess.run(
        [sys.executable, "-m", "feduca", *words],
        cwd=tmp_path,
        env={**os.environ, **slurm},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "feduca: --on slurm: no job was taken: " in done.stderr.splitlines()[-1]
    assert "invalid partition" in done.stderr
    assert "Traceback" not in done.stderr
