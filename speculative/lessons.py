"""What one step of training looks at: sequences, anchors, temperatures. All of it follows from seed and step."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corymb.models.placement import Place
from corymb.speculative.corpus import Corpus
from corymb.speculative.draft_loss import Answers
from corymb.speculative.trainable import Blocks

PAD = 64  # sequences of a step are filled up to a multiple of so many tokens


class Features(Protocol):
    """What the target makes of the corpus."""

    def of(self, picked: NDArray[np.int64], length: int) -> tuple[Tensor, Tensor]:
        """Features [B, S, m * H] of the picked sequences' first `length` tokens, and last hidden states [B, S, H]; what
        stands behind a sequence's end is anything but NaN."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """How much a step looks at."""

    batch: int = 64  # sequences
    num_anchors: int = 96
    num_drafts: int = 7
    hot_share: float = 0.5  # of sequences whose distributions are compared at `hot`, the others at 1
    hot: float = 0.5


@dataclass(frozen=True, slots=True)
class Lesson:
    """One step's input and what is right."""

    blocks: Blocks
    answers: Answers


class Lessons:
    """Makes lessons; owns nothing."""

    def __init__(self, corpus: Corpus, features: Features, plan: Plan, *, seed: int, device: torch.device) -> None:
        """Raises ValueError for a corpus in which no answer has two tokens."""
        self._usable = np.flatnonzero(corpus.lengths - corpus.answer_starts >= 2)
        if not len(self._usable):
            raise ValueError("no answer has two tokens")
        self._corpus = corpus
        self._features = features
        self._plan = plan
        self._seed = seed
        self._place = Place(device)

    def lesson(self, step: int) -> Lesson:
        """The lesson of a step."""
        return self.over(self._picked(step), step)

    def over(self, picked: NDArray[np.int64], step: int) -> Lesson:
        """A lesson over these conversations."""
        random = np.random.default_rng((self._seed, 1, step))
        corpus, plan = self._corpus, self._plan
        lengths = corpus.lengths[picked]
        length = -(-int(lengths.max()) // PAD) * PAD
        anchors, real = _anchors(corpus.answer_starts[picked], lengths, plan.num_anchors, random)
        token_ids = np.zeros((len(picked), length + plan.num_drafts + 1), np.int64)
        for row, index in enumerate(picked.tolist()):
            token_ids[row, : lengths[row]] = corpus.ids_of(index)
        places = anchors[:, :, None] + np.arange(plan.num_drafts + 1)
        block = np.take_along_axis(token_ids, places.reshape(len(picked), -1), axis=1).reshape(places.shape)
        valid = real[:, :, None] & (places[:, :, 1:] < lengths[:, None, None])
        heat = np.where(random.random(len(picked)) < plan.hot_share, plan.hot, 1.0).astype(np.float32)
        heats = np.broadcast_to(heat[:, None, None], valid.shape)

        features, hidden = self._features.of(picked, length)
        at = self._to(np.minimum(places[:, :, :-1], length - 1).reshape(len(picked), -1))
        answered = hidden.gather(1, at[:, :, None].expand(-1, -1, hidden.shape[2]))
        return Lesson(
            Blocks(features, self._to(anchors), self._to(block[:, :, :-1])),
            Answers(
                answered.flatten(0, 1),
                self._to(block[:, :, 1:]).flatten(),
                self._to(valid).flatten(),
                self._to(heats).flatten(),
            ),
        )

    def _picked(self, step: int) -> NDArray[np.int64]:
        """Every conversation comes once before any comes again, in a new order each time."""
        size, first = len(self._usable), step * self._plan.batch
        wanted = np.arange(first, first + self._plan.batch)
        orders = {
            turn: np.random.default_rng((self._seed, 0, turn)).permutation(size)
            for turn in set((wanted // size).tolist())
        }
        chosen = [orders[place // size][place % size] for place in wanted.tolist()]
        picked: NDArray[np.int64] = self._usable[chosen]
        return picked

    def _to(self, array: NDArray[Any]) -> Tensor:
        return self._place(np.ascontiguousarray(array))


def _anchors(
    starts: NDArray[np.int64], lengths: NDArray[np.int64], count: int, random: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Positions [B, count] with an answer's token behind them, rising; and which are real: short answers have fewer."""
    most = int(lengths.max())
    chances = random.random((len(starts), most))
    positions = np.arange(most)
    possible = (positions >= starts[:, None]) & (positions < lengths[:, None] - 1)
    chances[~possible] = 2.0
    size = min(count, most)
    chosen = np.sort(np.argpartition(chances, size - 1, axis=1)[:, :size], axis=1)
    real = np.take_along_axis(possible, chosen, axis=1)
    missing = count - size
    return np.pad(np.where(real, chosen, 0), ((0, 0), (0, missing))), np.pad(real, ((0, 0), (0, missing)))
