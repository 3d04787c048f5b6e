"""Data sets, their split over silos, models, and the engines that train them. The only part that imports torch."""

from feduca.tasks.build import build_natural_task, build_own_task, build_task, own_task
from feduca.tasks.data import Dataset, available, load
from feduca.tasks.data.partition import Partition, split, table, wishes
from feduca.tasks.data.plot import plot
from feduca.tasks.metrics import criterion
from feduca.tasks.task import Settings, Silo, TorchTask, merge

__all__ = [
    "Dataset",
    "Partition",
    "Settings",
    "Silo",
    "TorchTask",
    "available",
    "build_natural_task",
    "build_own_task",
    "build_task",
    "criterion",
    "load",
    "merge",
    "own_task",
    "plot",
    "split",
    "table",
    "wishes",
]
