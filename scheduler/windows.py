"""Who decides how much is drafted and verified."""

from typing import Protocol

from corymb.scheduler.plan import Int32, Sampled, StepPlan


class WindowPolicy(Protocol):
    """Chooses budgets by what it learns. Only steps whose results are known may count: a budget must not depend on what
    the step's own drafts turn out to be, or what is sampled no longer follows the target (dspark.md: D.3)."""

    num_drafts: int  # most drafts of a row

    def open(self, row: int, step: int) -> None:
        """A request took a row of the table in this step: what was learned of the row before is another's."""
        ...

    def budget(self, step: int, rows: Int32, starts: Int32, most: Int32) -> int | None:
        """How many drafts this step verifies over these rows [R], which stand at least at `starts` and may verify
        `most` each; None for all. 0 for none: then nothing is drafted."""
        ...

    def learn(self, plan: StepPlan, sampled: Sampled) -> float | None:
        """Takes a step's results, in the order of steps; returns how many seconds it was expected to take when its
        budget was chosen, None where nothing was expected."""
        ...


class FullWindows:
    """Every draft is verified."""

    def __init__(self, num_drafts: int) -> None:
        self.num_drafts = num_drafts

    def open(self, row: int, step: int) -> None:
        """Nothing is learned."""

    def budget(self, step: int, rows: Int32, starts: Int32, most: Int32) -> None:
        """No bound."""

    def learn(self, plan: StepPlan, sampled: Sampled) -> None:
        """Nothing to learn."""
