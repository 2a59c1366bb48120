"""How far something measured earlier is from how it is now: for all sizes together, and for each beside that."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

COMMON = 0.1  # share of a deviation that is taken for common to all sizes; of the first few, what makes their mean
OWN = 0.03  # share that is taken for the size's own
FORGET = 0.01  # share of a size's own that is forgotten when it is seen: what nothing contradicts becomes common
WIDEST = math.log(4.0)  # no single measurement counts for more: a machine may stand still for a moment
_KNOTS = 32  # sizes of 2^0, 2^1 …; those between go by both neighbours


class Correction:
    """Factors by size. A deviation is first of all thought to be common: sizes that were never seen share it, so that
    what is compared with what is measured all the time is judged by the same clock."""

    def __init__(self) -> None:
        """Nothing deviates."""
        self._common = 0.0  # logarithms
        self._own = np.zeros(_KNOTS)
        self._num_learned = 0

    def at(self, sizes: NDArray[np.integer[Any]] | int) -> Float64:
        """What to multiply the measured by, at each of the sizes."""
        places = np.log2(np.maximum(sizes, 1))
        return np.asarray(np.exp(self._common + np.interp(places, np.arange(_KNOTS), self._own)), np.float64)

    def learn(self, size: int, ratio: float) -> None:
        """Something of this size is so many times what was measured; above 0."""
        place = min(math.log2(max(size, 1)), _KNOTS - 1.001)
        knot, beyond = int(place), place % 1
        deviation = math.log(ratio) - math.log(float(self.at(size)))
        deviation = min(max(deviation, -WIDEST), WIDEST)
        weights = np.array([1 - beyond, beyond])
        self._num_learned += 1
        self._common += max(COMMON, 1 / self._num_learned - OWN) * deviation
        self._own[knot : knot + 2] += (OWN * deviation - FORGET * self._own[knot : knot + 2]) * weights
