"""One run while it goes on, simulated or deployed: its records, its checkpoints, and what it comes to in the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from feduca.core.records import ClientRecord, RoundRecord, of_cohort, plain
from feduca.recipes.schema import Recipe
from feduca.runs.directory import Resumed, RunDirectory, RunResult, summarise
from feduca.runs.lines import Packed, Records
from feduca.types import Federation, ServerState

Watcher = Callable[[RoundRecord, ClientRecord], None]


@dataclass(frozen=True)
class Session:
    """What the loop tells after each round goes to the run's directory, where it has one, and to `watch`.

    `model` is the run's task, or what the server of a deployment knows of it.
    """

    recipe: Recipe
    seed: int
    federation: Federation
    model: object
    directory: RunDirectory | None = None
    watch: Watcher | None = None
    records: list[dict[str, Any]] = field(default_factory=list)
    kept: Packed = field(default_factory=Packed)  # the silos' records of a run without a directory

    @property
    def clients(self) -> Records:
        """The silos' records so far; they lie on the disk where there is a directory."""
        return self.kept if self.directory is None else self.directory.clients

    def begin(self, earlier: Resumed | None = None) -> ServerState | None:
        """Go on from a checkpoint, or start the directory anew; the state the loop has to continue."""
        if earlier is not None:
            self.federation.restore(earlier.clients)
            self.records.extend(earlier.rounds)
            return earlier.state
        if self.directory is not None:
            about = getattr(self.model, "describe", dict)()
            self.directory.begin(self.recipe.plain(), self.seed, self.federation.silos, about)
        return None

    def on_round(self, record: RoundRecord, per_client: ClientRecord, state: ServerState) -> None:
        """`OnRound` of the loop."""
        said = plain(record)
        if said["asked"] is None:  # as it was before there were cohorts
            del said["asked"]
        self.records.append(said)
        silos = of_cohort(per_client)
        if self.directory is None:
            self.kept.append(silos)
        else:
            self.directory.append(self.records[-1], silos)
            last = state.round > self.recipe.rounds
            self.directory.save(state, self.federation.snapshot(), last=last)
        if self.watch is not None:
            self.watch(record, per_client)

    def finish(self, final: ServerState, more: Mapping[str, Any] | None = None) -> RunResult:
        """Sum up; `more` is what else the summary should say."""
        summary = {**summarise(self.records, self.clients, self.federation.silos), **(more or {})}
        if (metric := metric_of(self.recipe, self.model)) != "accuracy":
            summary["metric"] = metric  # what the figures called accuracy are here
        if self.directory is not None:
            self.directory.finish(summary)
        where = None if self.directory is None else self.directory.path
        return RunResult(
            self.recipe.name,
            self.recipe.plain(),
            self.seed,
            self.records,
            self.clients,
            summary,
            where,
            final.theta,
            tuple(self.federation.silos),
        )


def metric_of(recipe: Recipe, model: object) -> str:
    """What models are judged by: as the model says, or where it does not (a server without data), the recipe."""
    judge = getattr(model, "criterion", None)
    if judge is None:
        return recipe.task.metric
    return "accuracy" if judge.score is None else judge.name
