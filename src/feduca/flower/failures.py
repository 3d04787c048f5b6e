"""What the server hears of an error at a silo: its class and a number. The text may hold patients' data and stays in its log.

`discreet` keeps to that where our own code runs on a silo; `launch.py` holds every app to it on the way out of the SuperNode.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flwr.app import Message

from feduca.flower.store import SiloStore

log = logging.getLogger("feduca")

POLICY = "declined: policy"  # all that a silo says which its operator, or its operator's policy, keeps out
LEAVES, ERASES = f"{POLICY}, for good", f"{POLICY}, for good, and asks to be forgotten"
DECIDED = (POLICY, LEAVES, ERASES)
UNAPPROVED = "its operator has not approved this app"
SPOKEN = re.compile(r"[A-Za-z]{1,40}, line \d{1,9} of its log")  # all that ever leaves
_RAISED = re.compile(r"<class '(?P<name>[\w.]+)'>:<'(?P<text>.*)'>", re.DOTALL)  # as Flower words an exception
_PACKAGES = {"feduca", "numpy", "scipy", "torch", "pandas", "sklearn", "safetensors", *sys.stdlib_module_names}


class SiloFailure(Exception):
    """An error, in the words that may leave the silo."""


class Declined(SiloFailure):
    """A silo's operator, or its policy, keeps it out."""


def called(module: str, name: str) -> str:
    """An exception's name where everybody knows it; an app could put anything into the name of its own."""
    known = module in ("", "builtins") or module.partition(".")[0] in _PACKAGES
    there = getattr(sys.modules.get(module or "builtins"), name, None) if known else None
    return name if isinstance(there, type) and re.fullmatch("[A-Za-z]{1,40}", name) else "Exception"


def note(folder: Path | str, name: str, text: str, **about: Any) -> str:
    """Write an error to the silo's log; returns what may be said of it."""
    line = 0
    with contextlib.suppress(Exception):  # the disk may be what failed
        line = SiloStore(folder).log(**about, decision="failed", reason=text[:2000])
    return f"{name}, line {line} of its log"


@contextlib.contextmanager
def discreet(folder: Path | str, **about: Any) -> Iterator[None]:
    """Any error within goes to the silo's log in `folder`; what is raised instead says only where to find it."""
    try:
        yield
    except Declined:
        raise
    except Exception as error:
        log.error("this round failed", exc_info=error)
        text = " ".join("".join(traceback.format_exception_only(error)).split())
        kind = type(error)
        raise SiloFailure(note(folder, called(kind.__module__, kind.__name__), text, **about)) from None


def spoken(reason: str, folder: Path, **about: Any) -> str:
    """What the server may hear of an error reply in Flower's words, whatever app it comes from."""
    found = _RAISED.fullmatch(reason)
    if found is None:
        return note(folder, "Exception", reason, **about)
    if SPOKEN.fullmatch(found["text"]) or found["text"] in DECIDED:
        return found["text"]
    module, _, name = found["name"].rpartition(".")
    return note(folder, called(module, name), f"{name}: {found['text']}", **about)


def heard(reply: Message) -> str:
    """At the server: the reason of an error reply, in one line, without the class that Flower puts around our own words."""
    words = " ".join((reply.error.reason or f"error {reply.error.code}").split())
    found = _RAISED.fullmatch(words)
    ours = found and (SPOKEN.fullmatch(found["text"]) or found["text"] in DECIDED)
    return (found["text"] if found and ours else words)[:300]


def numberless(words: str) -> str:
    """The same for every time that something happens: only the line of a log or the round is another."""
    return re.sub("[0-9]+", "", words)
