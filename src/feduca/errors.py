"""The exceptions that feduca raises on purpose.

    FeducaError                 anything feduca says to its user
    |-- InputError              the user's input is wrong: what, the value seen, what to do (exit code 2)
    |   |-- ConfigError         a recipe, a TOML file or a --set
    |   |-- ProblemError        a participation program that is not one
    |   |-- DataError           a data set that is missing, damaged or does not fit
    |   `-- CheckpointError     a checkpoint that is damaged or belongs to another run
    `-- RunError                something went wrong while running (exit code 1)

Every message is one line. Nothing else is caught: an unexpected exception is a bug and keeps its traceback.
"""

from __future__ import annotations


class FeducaError(Exception):
    """Base of everything feduca raises on purpose."""


class InputError(FeducaError):
    """The input is wrong; the message says what, the value seen and what to do."""


class ConfigError(InputError):
    """A recipe, a TOML file or a `--set` is wrong."""


class ProblemError(InputError):
    """A participation program is malformed."""


class DataError(InputError):
    """A data set is missing, damaged, or does not fit the recipe."""


class CheckpointError(InputError):
    """A checkpoint is damaged, or belongs to another run."""


class RunError(FeducaError):
    """A run could not go on."""
