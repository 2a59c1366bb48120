"""How long whole blocks would have been accepted, estimated where only their beginnings were verified.

A block whose window was accepted to its end, with drafts left, is *censored*: nobody knows how it would have gone on.
But the target says later what it thinks of the same places, as long as the text goes on as the block did: draft d has
the chance min(1, p(d) / q(d)) there. What never shows bounds the estimate from both sides (dspark.md: F).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from corymb.scheduler.plan import Blocks, Int32


@dataclass(frozen=True, slots=True)
class Law:
    """What N rows of a step were drawn from. Rows without one said the only token that they could."""

    index: Sequence[int]  # [N], of the rows
    target: Tensor  # [N, P + 1, V], at each place up to the last that the row reached
    draft: Tensor | None  # [N, P, V]; None: drafts were certain


@dataclass(frozen=True, slots=True)
class Step:
    """R rows that were verified."""

    rows: Int32  # [R]
    starts: Int32  # [R], positions of anchors
    drafts: Int32  # [R, P]
    most: Int32  # [R], drafts of each that could have been verified
    windows: Int32  # [R], those that might be accepted
    outputs: Int32  # [R, P + 1]
    counts: Int32  # [R], of the outputs: one more than accepted
    laws: Sequence[Law]


@dataclass(slots=True)
class _Censored:
    position: int  # of the first token that it is not known to hold
    token_ids: list[int]  # from there on
    chances: list[float]  # that they had when they were drafted
    length: float  # accepted so far, the target's own token included; what is only likely by its chance
    survival: float = 1.0  # the chance that all before `position` would have been accepted

    def close(self, blocks: "_Sums") -> None:
        """Nothing more will be known of it."""
        blocks.add(self.length, self.length + self.survival * len(self.token_ids))


@dataclass(slots=True)
class _Sums:
    count: int = 0
    lower: float = 0.0
    upper: float = 0.0

    def add(self, lower: float, upper: float) -> None:
        self.count += 1
        self.lower += lower
        self.upper += upper


@dataclass(slots=True)
class _Chances:
    """Looks chances up in a step's laws."""

    step: Step
    where: dict[int, tuple[Law, int]] = field(init=False)

    def __post_init__(self) -> None:
        self.where = {index: (law, nth) for law in self.step.laws for nth, index in enumerate(law.index)}

    def of_target(self, index: int, place: int, token_id: int) -> float:
        """That the target gave a token at a place that its row reached."""
        if index not in self.where:
            return float(self.step.outputs[index, place] == token_id)
        law, nth = self.where[index]
        return float(law.target[nth, place, token_id])

    def of_draft(self, index: int, place: int, token_id: int) -> float:
        """That the draft had when it was drawn."""
        law, nth = self.where.get(index, (None, 0))
        return 1.0 if law is None or law.draft is None else float(law.draft[nth, place, token_id])


class BlockEstimate:
    """Follows censored blocks, by row. A row that moved on unseen, or is another request's, ends those that it had."""

    def __init__(self) -> None:
        """Nothing is open."""
        self._open: dict[int, list[_Censored]] = {}
        self._ends: dict[int, int] = {}  # by row, position of the token that it said last

    def follow(self, step: Step) -> Blocks:
        """Takes a step; returns what is now known of blocks, those of earlier steps among them."""
        sums, chances = _Sums(), _Chances(step)
        for index, row in enumerate(step.rows.tolist()):
            start, count = int(step.starts[index]), int(step.counts[index])
            blocks = self._open.pop(row, [])
            if self._ends.get(row) != start:
                for block in blocks:
                    block.close(sums)
                blocks = []
            self._ends[row] = start + count
            if step.most[index]:
                self._begin(index, chances, blocks, sums)
            left = [block for block in blocks if not self._advance(block, index, chances, sums)]
            if left:
                self._open[row] = left
        return Blocks(sums.count, sums.lower, sums.upper)

    @staticmethod
    def _begin(index: int, chances: _Chances, blocks: list[_Censored], sums: _Sums) -> None:
        step = chances.step
        window, most, count = (int(each[index]) for each in (step.windows, step.most, step.counts))
        if count <= window or window == most:  # a draft was rejected, or there was no more
            sums.add(count, count)
            return
        token_ids = step.drafts[index, window:most].tolist()
        drawn = [chances.of_draft(index, window + nth, token_id) for nth, token_id in enumerate(token_ids)]
        blocks.append(_Censored(int(step.starts[index]) + window + 1, token_ids, drawn, float(count)))

    @staticmethod
    def _advance(block: _Censored, index: int, chances: _Chances, sums: _Sums) -> bool:
        """Takes what the row said at the block's next places; True if nothing more can be known of it."""
        step, first = chances.step, int(chances.step.starts[index]) + 1
        while block.position < first + step.counts[index]:
            place = block.position - first
            token_id, drawn = block.token_ids.pop(0), block.chances.pop(0)
            target = chances.of_target(index, place, token_id)
            block.survival *= min(1.0, target / drawn) if drawn > 0 else 0.0
            block.length += block.survival
            block.position += 1
            if not block.token_ids or step.outputs[index, place] != token_id:
                block.close(sums)
                return True
        return False
