"""Which weight a step reads next, so that a small kernel can ask for its beginning while nothing else reads memory."""

from dataclasses import dataclass, field

from torch import Tensor

from corymb.kernels.triton_prefetch import LINE_BYTES

MOST_ROWS = 512  # of a step: those with more compute while they read


@dataclass(slots=True)
class Ahead:
    """Learns in which order a model's products are computed: for as many rows they come again in the same one.

    `size_bytes`: how much of a weight is asked for, in equal parts of all its rows, where all multiprocessors begin to
    read; 0 asks for nothing. `num_programs`: how many ask in a kernel that does something else.
    """

    size_bytes: int = 0
    num_programs: int = 0
    # By the address of the weight before and the number of rows; None where the product asks for itself.
    _next: dict[tuple[int, int], Tensor | None] = field(default_factory=dict)
    _last: int = 0  # address of the last product's weight

    def passed(self, weight: Tensor, num_rows: int, *, asks: bool = False) -> None:
        """A product of so many rows with this weight is being queued. `asks`: it starts early and asks for itself."""
        if self.size_bytes:
            self._next[self._last, num_rows] = None if asks else weight
            self._last = weight.data_ptr()

    def arguments(self, x: Tensor, num_programs: int | None = None) -> dict[str, Tensor | int]:
        """What a kernel that works on x [N, …] is told of the weight that is read next. `num_programs`: None for ours,
        or those that do the kernel's own work."""
        weight = self._next.get((self._last, len(x))) if self.size_bytes and len(x) <= MOST_ROWS else None
        if weight is None:
            return {"ahead": x, "ahead_rows": 0, "ahead_stride": 0, "ahead_lines": 0, "AHEAD": 0}
        num_rows, row_bytes = weight.shape[0], weight.shape[1] * weight.element_size()
        return {
            "ahead": weight,
            "ahead_rows": num_rows,
            "ahead_stride": weight.stride(0),
            "ahead_lines": max(1, min(self.size_bytes // num_rows, row_bytes) // LINE_BYTES.value),
            "AHEAD": self.num_programs if num_programs is None else num_programs,
        }


def nothing_ahead() -> Ahead:
    """Asks for nothing."""
    return Ahead()
