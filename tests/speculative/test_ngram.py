"""What an n-gram drafter finds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from corymb.speculative.ngram import continuation


def slow(said: list[int], count: int, least: int, longest: int) -> list[int]:
    """The same, place by place."""
    for length in range(min(longest, len(said) - 1), least - 1, -1):
        for end in range(len(said) - 2, length - 2, -1):
            if said[end - length + 1 : end + 1] == said[len(said) - length :]:
                return said[end + 1 : end + 1 + count]
    return []


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=30),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(3, 8),
)
def test_the_latest_of_the_longest_endings_is_followed(said: list[int], count: int, least: int, longest: int) -> None:
    found = continuation(np.array(said, np.int32), count, least=least, longest=longest)
    assert found.tolist() == slow(said, count, least, longest)
