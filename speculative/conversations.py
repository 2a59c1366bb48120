"""Makes a corpus: prompts of ours and prompts that the target makes up, answered by the target."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from corymb.scheduler.messages import Sampling
from corymb.scheduler.plan import Int32
from corymb.speculative.corpus import Conversation, cut_loop, load_shards, save_shard
from corymb.speculative.prompts import Prompts
from corymb.speculative.writing import Task, Writer

SELF_SHARE = 0.44  # of prompts: the target, shown where a user's words begin, writes them itself
LEAST_WORDS = 3  # tokens of a prompt that the target made up
# Temperature and min-p of answers; a quarter each. A draft serves greedy requests as well as warm ones.
ANSWERS = ((0.0, 0.0), (0.3, 0.0), (0.7, 0.0), (1.0, 0.03))
MADE_UP = ((1.0, 0.02), (1.0, 0.06))


class Speech(Protocol):
    """Text of a chat and its tokens."""

    opening: Int32  # what stands before a user's words

    def prompt(self, words: str) -> Int32:
        """A conversation of one user's words, up to where the answer begins."""
        ...

    def words(self, token_ids: Int32) -> str:
        """The text of tokens, without what marks structure."""
        ...


@dataclass(frozen=True, slots=True)
class Size:
    """How much is written."""

    num_conversations: int = 90_000
    max_tokens: int = 512  # of a conversation
    max_answer: int = 360
    shard: int = 22_500  # conversations in a file: what a kill costs at most
    seed: int = 0

    @property
    def num_shards(self) -> int:
        """Files."""
        return -(-self.num_conversations // self.shard)


class Conversations:
    """Owns a folder of shards. Each depends on its number and the seed alone, so that they can be made in any order
    and a run that was killed makes only those that are missing."""

    def __init__(self, folder: Path, size: Size, speech: Speech) -> None:
        self._folder = folder
        self._size = size
        self._speech = speech

    @property
    def missing(self) -> list[int]:
        """Numbers of the shards that are not there."""
        return [number for number in range(self._size.num_shards) if not self._path(number).exists()]

    def make(self, number: int, writer: Writer, on_progress: Callable[[int, int], None]) -> None:
        """Writes one shard."""
        size = self._size
        count = min(size.shard, size.num_conversations - number * size.shard)
        random = np.random.default_rng((size.seed, number))
        prompts = Prompts(size.seed * 1_000_003 + number, held_out=False)
        num_self = round(SELF_SHARE * count)
        asked = [prompts.mixed() for _ in range(count - num_self)]
        asked += [("self", words) for words in self._made_up(num_self, writer, random)]
        tasks, kinds = [], []
        for kind, words in asked:
            prompt_ids = self._speech.prompt(words)
            room = size.max_tokens - len(prompt_ids)
            if room >= 2:
                tasks.append(Task(prompt_ids, _sampling(ANSWERS, min(size.max_answer, room), random)))
                kinds.append(kind)
        self._folder.mkdir(parents=True, exist_ok=True)
        answers = writer.write(tasks, on_progress)
        save_shard(
            self._path(number),
            [
                Conversation(
                    np.concatenate((task.prompt_ids, cut_loop(answer))),
                    len(task.prompt_ids),
                    kind,
                    task.sampling.temperature,
                )
                for task, answer, kind in zip(tasks, answers, kinds, strict=True)
            ],
        )

    def load(self) -> list[Conversation]:
        """All of them, when none is missing."""
        return load_shards(self._path(number) for number in range(self._size.num_shards))

    def _made_up(self, count: int, writer: Writer, random: np.random.Generator) -> list[str]:
        most = max(2, min(160, self._size.max_tokens // 2))
        tasks = [Task(self._speech.opening, _sampling(MADE_UP, most, random)) for _ in range(count)]
        written = writer.write(tasks, lambda *_: None)
        # One that did not end is half a thought.
        whole = [ids for ids in written if LEAST_WORDS < len(ids) < most]
        return list(dict.fromkeys(self._speech.words(ids) for ids in whole))

    def _path(self, number: int) -> Path:
        return self._folder / f"conversations-{number:03d}.safetensors"


def _sampling(choices: tuple[tuple[float, float], ...], most: int, random: np.random.Generator) -> Sampling:
    temperature, min_p = choices[int(random.integers(len(choices)))]
    seed = int(random.integers(1 << 31))
    return Sampling(max_new_tokens=most, temperature=temperature, min_p=min_p, seed=seed)
