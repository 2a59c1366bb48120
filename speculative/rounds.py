"""What drafts were worth: every round of the real loop, in which a whole block was verified."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from corymb.scheduler.plan import Int32, Sampled, StepPlan

Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rounds:
    """N rounds of blocks of G drafts."""

    kinds: list[str]  # [N], of the prompts
    accepted: Int32  # [N], drafts
    confidence: Float | None  # [N, G], each draft's own, given those before it; None of a drafter that has none

    @property
    def accept_length(self) -> float:
        """Tokens of a round, the target's own included."""
        return float(self.accepted.mean()) + 1

    def prefixes(self, num_drafts: int) -> Float:
        """[N, G], 1 where a draft and all before it were accepted."""
        return (self.accepted[:, None] > np.arange(num_drafts)).astype(np.float64)

    def of_kind(self, kind: str) -> "Rounds":
        """Those of one kind of prompt."""
        return self.pick(np.array([one == kind for one in self.kinds]))

    def pick(self, index: NDArray[Any]) -> "Rounds":
        """Some of them."""
        confidence = None if self.confidence is None else self.confidence[index]
        return Rounds(np.array(self.kinds)[index].tolist(), self.accepted[index], confidence)


class Watching:
    """A WindowPolicy that verifies every draft and keeps what came of it. Rows are known by their prompts."""

    def __init__(self, num_drafts: int, kinds: dict[bytes, str]) -> None:
        """`kinds`: by prompt."""
        self.num_drafts = num_drafts
        self._kinds = kinds
        self._of_row: dict[int, str] = {}
        self._found: list[tuple[str, int, NDArray[np.float32] | None]] = []

    def open(self, row: int, step: int) -> None:
        """See WindowPolicy. The plan that opens a row brings its prompt."""

    def budget(self, step: int, rows: Int32, starts: Int32, most: Int32) -> None:
        """No bound."""

    def learn(self, plan: StepPlan, sampled: Sampled) -> None:
        """Keeps rounds of whole blocks: near a request's last token they are shorter, and would count as worse."""
        for opened in plan.opened:
            self._of_row[opened.row] = self._kinds[opened.prompt_ids.tobytes()]
        drafted = sampled.drafted
        if drafted is None:
            return
        for index in np.flatnonzero(drafted.num_verified == self.num_drafts).tolist():
            confidence = None if drafted.confidence is None else drafted.confidence[index]
            kind = self._of_row[int(plan.rows[index])]
            self._found.append((kind, int(sampled.counts[index]) - 1, confidence))

    def rounds(self) -> Rounds:
        """All of them."""
        kinds, accepted, confidence = zip(*self._found, strict=True) if self._found else ((), (), ())
        known = [one for one in confidence if one is not None]
        return Rounds(
            list(kinds),
            np.array(accepted, np.int32),
            np.array(known, np.float64) if known else None,
        )


def report(rounds: Rounds, num_drafts: int) -> dict[str, Any]:
    """What `corymb draft evaluate` says of one temperature."""
    survival = rounds.prefixes(num_drafts).mean(axis=0)
    before = np.concatenate(([1.0], survival[:-1]))
    conditional = np.divide(survival, before, out=np.zeros_like(survival), where=before > 0)
    kinds = sorted(set(rounds.kinds))
    return {
        "accept_length": round(rounds.accept_length, 4),
        "rounds": len(rounds.accepted),
        "conditional_acceptance": np.round(conditional, 4).tolist(),
        "survival": np.round(survival, 4).tolist(),
        "accept_length_by_kind": {kind: round(rounds.of_kind(kind).accept_length, 4) for kind in kinds},
        "rounds_by_kind": {kind: rounds.kinds.count(kind) for kind in kinds},
    }
