"""Data sets, their split over silos, models, and the engines that train them. The only part that imports torch."""

from feduca.tasks.build import build_task
from feduca.tasks.datasets import Dataset, load
from feduca.tasks.partition import Partition, split, table, wishes
from feduca.tasks.task import Settings, Silo, TorchTask, merge

__all__ = [
    "Dataset",
    "Partition",
    "Settings",
    "Silo",
    "TorchTask",
    "build_task",
    "load",
    "merge",
    "split",
    "table",
    "wishes",
]
