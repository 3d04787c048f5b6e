"""The exceptions that feduca raises on purpose.

    FeducaError                 anything feduca says to its user
    |-- InputError              the user's input is wrong: what, the value seen, what to do (exit code 2)
    |   |-- ConfigError         a recipe, a TOML file or a --set
    |   |-- ProblemError        a participation program that is not one
    |   |-- DataError           a data set that is missing, damaged or does not fit
    |   |-- CheckpointError     a checkpoint that is damaged or belongs to another run
    |   `-- Busy                another process is writing what this one would
    `-- RunError                something went wrong while running (exit code 1)

Every message is one line, whatever the input held. Nothing else is caught: an unexpected exception is a bug and keeps its
traceback.
"""

from __future__ import annotations

MOST = 2000  # characters of a message


def printable(text: str, most: int = MOST) -> str:
    """`text` in one line that a terminal or a page takes as it stands: escapes for control characters, its middle cut out."""
    if len(text) > most:
        text = f"{text[: most // 2]} ... {text[-most // 2 :]}"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shown(value: object, most: int = 120) -> str:
    """A value as a message shows it, cut where it is long."""
    return printable(repr(value), most)


class FeducaError(Exception):
    """Base of everything feduca raises on purpose."""

    def __str__(self) -> str:
        return printable(super().__str__())


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


class Busy(InputError):
    """Another process is writing what this one would."""


class RunError(FeducaError):
    """A run could not go on."""
