"""Conversations that a target had with itself, on disk and in memory."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from corymb.scheduler.plan import Int32

KINDS = ("self", "arithmetic", "list", "chat", "poem", "code")  # of prompts; "self" for those the target made up


@dataclass(frozen=True, slots=True)
class Conversation:
    """One prompt and its answer."""

    token_ids: Int32
    answer_start: int  # the answer is what is from here on
    kind: str
    temperature: float  # that the answer was sampled at


class Corpus:
    """All conversations, one behind another."""

    def __init__(self, conversations: Sequence[Conversation]) -> None:
        lengths = [len(one.token_ids) for one in conversations]
        self.token_ids = np.concatenate([one.token_ids for one in conversations] or [np.empty(0, np.int32)])
        self.offsets: NDArray[np.int64] = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        self.answer_starts: NDArray[np.int64] = np.array([one.answer_start for one in conversations], np.int64)
        self.kinds = [one.kind for one in conversations]

    def __len__(self) -> int:
        return len(self.answer_starts)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of every conversation."""
        return np.diff(self.offsets)

    def ids_of(self, index: int) -> Int32:
        """One conversation's tokens."""
        ids: Int32 = self.token_ids[self.offsets[index] : self.offsets[index + 1]]
        return ids


def save_shard(path: Path, conversations: Sequence[Conversation]) -> None:
    """Writes a file of conversations that appears whole or not at all."""
    tensors = {
        "token_ids": np.concatenate([one.token_ids for one in conversations] or [np.empty(0, np.int32)]),
        "lengths": np.array([len(one.token_ids) for one in conversations], np.int32),
        "answer_starts": np.array([one.answer_start for one in conversations], np.int32),
        "kinds": np.array([KINDS.index(one.kind) for one in conversations], np.int32),
        "temperatures": np.array([one.temperature for one in conversations], np.float32),
    }
    partial = path.with_suffix(".partial")
    save_file(tensors, partial)
    partial.replace(path)


def load_shards(paths: Iterable[Path]) -> list[Conversation]:
    """What `save_shard` wrote, in the order of the files."""
    found: list[Conversation] = []
    for path in paths:
        tensors = load_file(path)
        ends = np.cumsum(tensors["lengths"])
        columns = zip(
            np.split(tensors["token_ids"], ends[:-1]) if len(ends) else [],
            tensors["answer_starts"].tolist(),
            tensors["kinds"].tolist(),
            tensors["temperatures"].tolist(),
            strict=True,
        )
        found += [Conversation(ids, start, KINDS[kind], heat) for ids, start, kind, heat in columns]
    return found


def cut_loop(token_ids: Int32, *, width: int = 16, most: int = 3) -> Int32:
    """The tokens up to where one run of `width` of them comes for the fourth time: a small model that repeats itself
    does so for ever, and teaches nothing but that."""
    if len(token_ids) < width:
        return token_ids
    seen: dict[bytes, int] = {}
    windows = np.lib.stride_tricks.sliding_window_view(token_ids, width)
    for start, window in enumerate(windows):
        key = window.tobytes()
        seen[key] = seen.get(key, 0) + 1
        if seen[key] > most:
            return token_ids[: start + width - 1]
    return token_ids
