"""Where jobs are computed: in processes of this machine, or where submitit brings them: Slurm, or this machine as if it were."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import signal
import subprocess
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from feduca.errors import ConfigError, InputError, RunError, printable, shown
from feduca.studies.jobs import Pool, Work

LOGS = ".jobs"  # the folder below OUT where jobs leave what they say

ON = ("local", "slurm", "debug")

LOOK_S = 1.0  # how long one look at jobs takes at most
ASK_S = 5.0  # between two questions to Slurm about all jobs
ENDING_S = 10.0  # what an interrupted job has to record that it was

MOST = 1000  # jobs that Slurm holds at a time, unless --jobs says how many: no more fit an array by default

HOUR = 60
SLURM: Mapping[str, type] = {  # what --slurm knows, as `sbatch` names it; gpus, cpus and mem are a job's
    "partition": str,
    "account": str,
    "qos": str,
    "constraint": str,
    "nodelist": str,
    "exclude": str,
    "reservation": str,
    "mem": str,
    "time": int,
    "gpus": int,
    "cpus": int,
    "setup": list,
}


@dataclass(frozen=True)
class Where:
    """So many `jobs` at a time (unset: one; on Slurm `MOST`), in processes of this machine or `on` what submitit reaches."""

    on: str | None = None
    jobs: int | None = None
    slurm: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.on is not None and self.on not in ON:
            raise ConfigError(f"--on {shown(self.on)}: choose {', '.join(ON[:-1])} or {ON[-1]}")
        if self.slurm and self.on != "slurm":
            raise ConfigError(
                f"--slurm is about --on slurm, which is {shown(self.on) if self.on else 'not there'}: add it"
            )

    @property
    def here(self) -> bool:
        """Whether this process computes all runs itself."""
        return self.on is None and (self.jobs or 1) == 1

    def pool(self, out: str | Path) -> Pool:
        logs = Path(out).resolve() / LOGS
        if self.on is None:
            return Processes(self.jobs or 1, logs)
        return Cluster(self.on, self.jobs or (MOST if self.on == "slurm" else 1), logs, self.slurm)


HERE = Where()


def slurm_options(texts: Sequence[str]) -> dict[str, Any]:
    """Of `--slurm`: entries with commas between them, or a TOML file with a table of them; later ones win."""
    found: dict[str, Any] = {}
    for text in texts:
        if text.endswith(".toml"):
            found |= _file(text)
            continue
        for entry in text.split(","):
            key, sign, value = entry.partition("=")
            if not sign:
                raise ConfigError(
                    f"--slurm wants key=value, got {entry!r}; for instance --slurm partition=gpu,time=4:00:00"
                )
            found[key.strip()] = value.strip()
    return {key: _checked(key, value) for key, value in found.items()}


def _file(name: str) -> dict[str, Any]:
    try:
        found = tomllib.loads(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--slurm {name}: {error.strerror}; give a TOML file with entries such as gpus = 1") from None
    except ValueError as error:
        raise ConfigError(f"--slurm {name} is not TOML ({error}); write entries such as gpus = 1") from None
    return found


def _checked(key: str, value: Any) -> Any:
    if key not in SLURM:
        raise ConfigError(f"--slurm {printable(key, 60)}: there is no such entry; choose from {', '.join(SLURM)}")
    if key == "time":
        return _minutes(value)
    if SLURM[key] is int:
        if isinstance(value, bool) or not re.fullmatch(r"\d{1,4}", str(value)):
            raise ConfigError(f"--slurm {key}={printable(str(value), 60)}: give a whole number, such as {key}=1")
        return int(value)
    if SLURM[key] is list:
        if not isinstance(value, list) or not all(isinstance(line, str) for line in value):
            raise ConfigError(f"--slurm {key}: give a list of shell lines, in a TOML file")
        return value
    if not isinstance(value, str | int) or not re.fullmatch(r"[\w.:,&|@*\[\]+-]+", str(value)):
        raise ConfigError(f"--slurm {key}={printable(str(value), 60)}: give a plain word, as sbatch takes it")
    return str(value)


def _minutes(value: Any) -> int:
    """Minutes, or [D-]H:MM[:SS]; up to a whole minute."""
    if found := re.fullmatch(r"(?:(\d{1,3})-)?(\d{1,3}):([0-5]\d)(?::([0-5]\d))?", str(value)):
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        total = (24 * days + hours) * HOUR + minutes + (seconds > 0)
    elif re.fullmatch(r"\d{1,7}", str(value)):
        total = int(value)
    else:
        total = 0
    if total < 1:
        raise ConfigError(f"--slurm time={printable(str(value), 60)}: give minutes, or hours such as 4:00:00")
    return total


class Processes:
    """Processes that last: each takes one job after another, and one that is killed takes its job alone with it."""

    word = "at work"

    def __init__(self, room: int, logs: Path) -> None:
        self.room, self._logs = room, logs
        self._spawn = multiprocessing.get_context("spawn")  # a copy of a process that computes in threads would hang
        self._idle: list[Connection] = []
        self._busy: dict[Connection, Path] = {}
        self._process: dict[Connection, Any] = {}

    def start(self, works: Sequence[Work]) -> list[Connection]:
        self._logs.mkdir(parents=True, exist_ok=True)
        return [self._begin(work) for work in works]

    def _begin(self, work: Work) -> Connection:
        log = self._logs / f"{work.name}.log"
        pipe = self._idle.pop() if self._idle else self._new(log)
        self._busy[pipe] = log
        with contextlib.suppress(OSError):  # it was killed meanwhile: `ended` finds out
            pipe.send((work, str(log)))
        return pipe

    def _new(self, log: Path) -> Connection:
        mine, theirs = self._spawn.Pipe()
        process = self._spawn.Process(target=_serve, args=(theirs,))
        process.start()
        theirs.close()  # or its end would not be seen
        self._process[mine] = process
        return mine

    def ended(self, jobs: Sequence[Connection]) -> list[tuple[Connection, str | None, Path]]:
        found: list[tuple[Connection, str | None, Path]] = []
        for pipe in wait(list(jobs), LOOK_S):
            assert isinstance(pipe, Connection), "nothing else was waited for"
            log = self._busy.pop(pipe)
            try:
                said = pipe.recv()
                self._idle.append(pipe)
            except (EOFError, OSError):
                said = None
                self._process.pop(pipe).join()
            found.append((pipe, said, log))
        return found

    def close(self) -> None:
        for pipe in self._busy:
            if (pid := self._process[pipe].pid) is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGINT)  # its runs record that they were interrupted
        for pipe, process in self._process.items():
            pipe.close()  # an idle one ends by that
            process.join(ENDING_S)
            if process.is_alive():
                process.kill()
                process.join()


def _serve(pipe: Connection) -> None:
    """A process's life: job after job, what each says in a log of its own, until nobody is there to give another."""
    while True:
        try:
            work, log = pipe.recv()
        except (EOFError, OSError):
            return
        with open(log, "ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        said = work()
        with contextlib.suppress(OSError):  # who asked is gone; the runs are there
            pipe.send(said)


class Cluster:
    """What submitit reaches: Slurm, this machine in processes as jobs of it would be (local), or this process itself (debug)."""

    def __init__(self, on: str, room: int, logs: Path, options: Mapping[str, Any]) -> None:
        try:
            import submitit
        except ImportError:
            raise InputError(f"--on {on} needs submitit: pip install 'feduca[cluster]'") from None
        self.room, self.word, self._on = room, "submitted" if on == "slurm" else "at work", on
        self._folder = logs / f"{on}-{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}"  # a job's number may come again
        self._all: list[Any] = []
        self._asked, self._gone = time.monotonic(), {}
        how = str(self._folder / "%j")
        if on == "debug":
            self._executor: Any = submitit.DebugExecutor(how)
        elif on == "local":
            self._executor = submitit.LocalExecutor(how)
            devices = _devices()
            self._executor.update_parameters(
                timeout_min=365 * 24 * HOUR, gpus_per_node=len(devices), visible_gpus=devices
            )
        else:
            try:
                self._executor = submitit.SlurmExecutor(how, max_num_timeout=100)  # a run goes on where its time was up
            except RuntimeError:
                raise InputError("--on slurm: there is no srun here; go to a machine that submits to Slurm") from None
            self._executor.update_parameters(**sbatch(options, room))

    def start(self, works: Sequence[Work]) -> list[Any]:
        with self._quietly():
            try:
                if len(works) == 1:
                    jobs = [self._executor.submit(works[0])]
                else:
                    with self._executor.batch():  # on Slurm one array
                        jobs = [self._executor.submit(work) for work in works]
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                words = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
                raise RunError(f"--on {self._on}: no job was taken: {printable(words[-1], 300)}") from None
        self._all += jobs
        return jobs

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        """What watches over a local job says at Ctrl-C what nobody needs: it goes to a file."""
        if self._on != "local":
            yield
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        kept = os.dup(2)
        try:
            with (self._folder / "watchers.log").open("ab") as file:
                os.dup2(file.fileno(), 2)
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)

    def ended(self, jobs: Sequence[Any]) -> list[tuple[Any, str | None, Path]]:
        until = time.monotonic() + LOOK_S
        while not (found := [job for job in jobs if self._is_over(job)]) and time.monotonic() < until:
            time.sleep(0.1)
        dead = self._vanished([job for job in jobs if job not in found]) if self._on == "slurm" else []
        return [(job, self._said(job), job.paths.stderr) for job in [*found, *dead]]

    def _is_over(self, job: Any) -> bool:
        return job.paths.result_pickle.exists() if self._on == "slurm" else job.done()

    def _said(self, job: Any) -> str | None:
        if self._on != "debug" and not job.paths.result_pickle.exists():
            return None
        if (error := job.exception()) is None:
            return job.result()
        words = [line for line in str(error).splitlines() if line.strip("- ")]
        return printable(
            next((line for line in reversed(words) if re.match(r"[\w.]+(Error|Exception)\b", line)), words[0]), 300
        )

    def _vanished(self, jobs: Sequence[Any]) -> list[Any]:
        """Jobs of which Slurm knows nothing any more, twice in a row, and that left no result: they were killed."""
        if not jobs or time.monotonic() - self._asked < ASK_S:
            return []
        self._asked = time.monotonic()
        asked = subprocess.run(
            ["squeue", "--me", "-h", "-r", "-o", "%i"], capture_output=True, encoding="utf-8", check=False
        )
        if asked.returncode:  # Slurm's controller may be away for a while
            return []
        there = set(asked.stdout.split())
        self._gone = {job: self._gone.get(job, 0) + 1 for job in jobs if job.job_id not in there}
        return [job for job, times in self._gone.items() if times > 1]

    def close(self) -> None:
        for job in self._all:
            if self._on != "debug" and not self._is_over(job):
                job.cancel(check=False)
        for job in self._all:
            if (process := getattr(job, "_process", None)) is not None:
                try:
                    process.wait(ENDING_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def sbatch(options: Mapping[str, Any], room: int) -> dict[str, Any]:
    """What submitit makes a script of."""
    known = {"gpus": "gpus_per_node", "cpus": "cpus_per_task"}
    said = {known.get(key, key): value for key, value in options.items() if key != "reservation"}
    more = {key: options[key] for key in ("reservation",) if key in options}
    beside = {"additional_parameters": more} if more else {}
    return {"job_name": "feduca", "time": 4 * HOUR, "array_parallelism": room, **said, **beside}


def _devices() -> tuple[int, ...]:
    """The GPUs that this process sees: a local job sees them, too."""
    import torch

    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if seen is None:
        return tuple(range(torch.cuda.device_count()))
    try:
        return tuple(json.loads(f"[{seen}]"))
    except ValueError:
        raise InputError(f"--on local takes GPUs by number: CUDA_VISIBLE_DEVICES is {shown(seen)}") from None
