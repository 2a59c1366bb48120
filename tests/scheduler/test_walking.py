"""A constraint that walks along drafts gives each place the mask it would have there, and stands where it stood."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from corymb.scheduler.constraint import Constraint
from corymb.scheduler.messages import Thinking
from corymb.scheduler.thinking import ThinkingLimit

from .test_grammars import END, Counting

NUM_WORDS = END // 32 + 1
TOKENS = st.one_of(st.integers(ord("a"), ord("p")), st.just(END), st.just(5))


def fresh(*, thinks: bool, after: tuple[int, ...]) -> Constraint:
    limit = ThinkingLimit(Thinking(max_tokens=3, begin=(), end=after or (5,))) if thinks else None
    return Constraint(Counting(), after=after, ending_ids=[END], min_new=2, limit=limit)


@given(
    st.lists(TOKENS, max_size=4),
    st.lists(TOKENS, max_size=6),
    st.booleans(),
    st.sampled_from([(), (5,), (5, ord("a"))]),
)
def test_walking_is_what_advancing_would_be(said, drafts, thinks, after) -> None:
    walking, stepping = fresh(thinks=thinks, after=after), fresh(thinks=thinks, after=after)
    for token in said:
        if walking.is_over or not walking.advance(token):
            return
        stepping.advance(token)
    bits = np.zeros((len(drafts) + 1, NUM_WORDS), np.int32)
    if walking.is_over:
        return
    for _ in range(2):  # the second walk starts where the first did
        num_filled = walking.walk(drafts, bits)
    for place in range(num_filled):
        expected = np.zeros(NUM_WORDS, np.int32)
        stepping.fill(expected)
        assert (bits[place] == expected).all()
        if place < len(drafts):
            token = drafts[place]
            allowed = bool(expected[token >> 5] >> (token & 31) & 1)
            goes_on = place + 1 < num_filled
            assert allowed or not goes_on
            if allowed:
                assert stepping.advance(token)
                assert goes_on == (not stepping.is_over)
