"""What is costly to make and large to hold: made when it is first asked for, kept while it is in use."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

# Trainers that a task keeps. A round asks for few kinds: plain training, with a proximal pull, under another objective, and
# alone; four make a captured graph last in all of them. More would hold memory for nothing: each has K models, their gradients
# and the activations of a step (a ResNet-18: 43 MiB a model, as much for its gradient, half of it for a copy in bf16), and every
# number of clients is a kind of its own, so that graphs for those who have left would stay.
KEPT = 4

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def cached(held: dict[Key, Value], key: Key, make: Callable[[], Value], limit: int) -> Value:
    """`held[key]`, made if it is missing; what was not asked for the longest goes first, before there is a new one.

    The caches of functools and cachetools make the new one first: the GPU would have to hold both.
    """
    if key in held:
        value = held.pop(key)
    else:
        while len(held) >= limit:
            del held[next(iter(held))]
        value = make()
    held[key] = value
    return value
