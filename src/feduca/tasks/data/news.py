"""20 Newsgroups, the version split by date, from its official folders: one folder per group, one file per message.

What gives the group away without reading the message is stripped, unless the whole of it is asked for: the header, quoted
lines and the signature. The rest is lower-cased and cut into words; the 20 000 commonest words of the training messages are
known, of each message the first 200 words are kept.
"""

from __future__ import annotations

import collections
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from feduca.errors import DataError
from feduca.tasks.data.base import Dataset, folder

HOME = "http://qwone.com/~jason/20Newsgroups/20news-bydate.tar.gz"
EXPECTED = {  # messages, and the sha256 of their and their groups' sorted digests
    "train": (11_314, "fb5c58337df3b03685cf5e9949e48370f4fe20ce63f1402e0e2e6a84d36bd733"),
    "test": (7_532, "1a7b73c29e1ac2df40e74ac28b9f1f4bd5c5e253cead252e3a14c7e617c1e250"),
}
GROUPS = 20
WORDS = 20_000
LENGTH = 200
PADDING, UNKNOWN = 0, 1

WORD = re.compile(r"[a-z]+(?:'[a-z]+)?|[0-9]+")
QUOTED = re.compile(r"(writes in|writes:|wrote:|says:|said:|^In article|^Quoted from|^\||^>)")


def newsgroups_whole(data_dir: str | None = None) -> Dataset:
    """The same messages whole, with the headers, quotes and signatures that give the group away."""
    return newsgroups(data_dir, whole=True)


def newsgroups(data_dir: str | None = None, *, whole: bool = False) -> Dataset:
    """20 Newsgroups: 11 314 messages to deal and 7 532 later ones to test with, as word numbers `[n, 200]`."""
    home = folder(data_dir)
    parts = {split: _messages(home / f"20news-bydate-{split}", split) for split in EXPECTED}
    (train, y_train, groups), (test, y_test, _) = parts["train"], parts["test"]
    train_words, test_words = ([words(text if whole else body(text)) for text in texts] for texts in (train, test))
    known = vocabulary(train_words, WORDS)
    return Dataset(
        "20news-whole" if whole else "20news",
        encode(train_words, known, LENGTH),
        y_train,
        encode(test_words, known, LENGTH),
        y_test,
        GROUPS,
        groups,
        vocabulary=len(known) + 2,
    )


def _messages(home: Path, split: str) -> tuple[list[str], np.ndarray, tuple[str, ...]]:
    if not home.is_dir():
        raise DataError(f"20 Newsgroups is not in {home}: fetch {HOME} and unpack it in {home.parent}")
    groups = sorted(path.name for path in home.iterdir() if path.is_dir())
    texts: list[bytes] = []
    labels: list[int] = []
    for label, group in enumerate(groups):
        for path in sorted((home / group).iterdir()):
            texts.append(path.read_bytes())
            labels.append(label)
    count, digest = EXPECTED[split]
    if len(groups) != GROUPS or len(texts) != count:
        raise DataError(
            f"{home} holds {len(texts)} messages of {len(groups)} groups where {count} of {GROUPS} belong: fetch "
            f"{HOME} again and unpack it in an empty folder"
        )
    found = checksum([groups[label] for label in labels], texts)
    if found != digest:
        raise DataError(
            f"{home} has checksum {found[:16]}, not {digest[:16]}: some message is damaged or in a wrong group; fetch {HOME} "
            "again"
        )
    return [text.decode("latin-1") for text in texts], np.array(labels, np.int64), tuple(groups)


def checksum(groups: Sequence[str], texts: Sequence[bytes]) -> str:
    """One digest of all messages with their groups, whatever their files are called."""
    each = (hashlib.sha256(group.encode() + b"\n" + text).digest() for group, text in zip(groups, texts))
    return hashlib.sha256(b"".join(sorted(each))).hexdigest()


def body(text: str) -> str:
    """A message without header, quoted lines and signature."""
    text = text.partition("\n\n")[2]
    lines = [line for line in text.split("\n") if not QUOTED.search(line)]
    text = "\n".join(lines).strip()
    lines = text.split("\n")
    for last in range(len(lines) - 1, 0, -1):  # a signature follows the last empty or dashed line
        if not lines[last].strip().strip("-"):
            return "\n".join(lines[:last])
    return text


def words(text: str) -> list[str]:
    """The words of a text, lower-cased."""
    return WORD.findall(text.lower())


def vocabulary(texts: Sequence[Sequence[str]], size: int) -> dict[str, int]:
    """Numbers from 2 on for the `size` commonest words (ties by alphabet); 0 is padding, 1 an unknown word."""
    counts = collections.Counter(word for text in texts for word in text)
    common = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:size]
    return {word: number for number, (word, _) in enumerate(common, start=2)}


def encode(texts: Sequence[Sequence[str]], known: dict[str, int], length: int) -> np.ndarray:
    """Word numbers `[n, length]`, cut or padded; a text without words is one unknown word."""
    out = np.full((len(texts), length), PADDING, dtype=np.int64)
    for row, text in zip(out, texts):
        numbers = [known.get(word, UNKNOWN) for word in text[:length]] or [UNKNOWN]
        row[: len(numbers)] = numbers
    return out
