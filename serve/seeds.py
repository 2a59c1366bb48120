"""Seeds for requests that bring none."""

import random
import secrets
from collections.abc import Callable

_SEED_BITS = 63


def seeds(random_seed: int | None = None) -> Callable[[], int]:
    """Gives a seed a call: unpredictable ones, or, from --random-seed, the same series in every run."""
    if random_seed is None:
        return lambda: secrets.randbits(_SEED_BITS)
    numbers = random.Random(random_seed)  # noqa: S311 - repeatable is what was asked for
    return lambda: numbers.getrandbits(_SEED_BITS)
