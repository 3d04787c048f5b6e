"""All silos in this process, along one leading axis: the simulator."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from feduca.client.behaviour import Behaviour
from feduca.client.decision import Choice, decide
from feduca.client.memory import blank, rows, written
from feduca.client.requests import Steps, drive
from feduca.client.step import completed, step
from feduca.core.messages import alone, each_its_own, together
from feduca.core.rows import Store
from feduca.types import Announcements, Array, ClientMemory, Reports, Task

BESIDE = "secure."  # what masked.py adds to a snapshot: beside a silo's memory, not in it


class InProcess:
    """Every silo of `task`, behaving as `how` says. Holds the clients' memory: it *is* the clients.

    `one_at_a_time` steps client by client instead of all in one batched call: slower, and to the bit what silos on machines of
    their own compute. Where few of them are asked at a time, their models lie in a `store`.
    """

    def __init__(self, task: Task, how: Behaviour, *, one_at_a_time: bool = False, store: Store | None = None) -> None:
        self.silos = tuple(task.silos)
        self._one_at_a_time = one_at_a_time
        self._task = task
        self._how = how
        self._store = store
        self._memory: ClientMemory | None = None

    def exchange(self, announcements: Announcements) -> Reports:
        if not self._one_at_a_time:
            return drive(self.steps(announcements), self._task)
        each = (alone(announcements, place) for place in range(len(announcements.clients)))
        parts = [drive(self.steps(asked), self._task) for asked in each]
        return together(parts, announcements.round, announcements.theta, self._how.family.size)

    def steps(self, announcements: Announcements) -> Steps[Reports]:
        """The same as a coroutine, for drivers that answer several federations at once."""
        clients = announcements.clients
        memory = self._memory or self._blank(announcements.theta)
        examples = np.asarray(self._task.examples)[clients]
        counted = getattr(self._task, "validation_examples", None)
        validation = None if counted is None else np.asarray(counted)[clients]
        before, asked = rows(memory, clients), each_its_own(announcements)
        after, reports = yield from step(
            before, asked, self._how, self._task.parameters, examples, validation, self._initial
        )
        self._memory = written(memory, clients, after, self._store)
        return reports

    def choices(self, announcements: Announcements) -> Steps[Choice]:
        """What silos would choose and deploy now. Nothing of it is remembered, and the training that would follow is left out."""
        clients = announcements.clients
        memory = rows(self._memory or self._blank(announcements.theta), clients)
        counted = getattr(self._task, "validation_examples", None)
        validation = None if counted is None else np.asarray(counted)[clients]
        asked = completed(memory, each_its_own(announcements), self._how)
        return (yield from decide(memory, asked, self._how, validation, self._initial))

    def _blank(self, theta: Array) -> ClientMemory:
        return blank(theta, len(self.silos), self._how.family, self._store)

    def _initial(self) -> Array:
        return self._task.init(self._how.seed)

    def snapshot(self) -> dict[str, Array]:
        if self._memory is None:
            return {}
        plain = {name: value for name, value in vars(self._memory).items() if name != "extra"}
        return plain | {f"extra.{name}": value for name, value in self._memory.extra.items()}

    def restore(self, arrays: Mapping[str, Array]) -> None:
        arrays = {name: value for name, value in arrays.items() if not name.startswith(BESIDE)}
        plain = {name: value for name, value in arrays.items() if not name.startswith("extra.")}
        extra = {name.removeprefix("extra."): value for name, value in arrays.items() if name.startswith("extra.")}
        self._memory = ClientMemory(**plain, extra=extra) if plain else None
