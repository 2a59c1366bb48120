"""Keys and how edges compare."""

import numpy as np
import pytest

from corymb.cache.key import Key, common_tokens


def raw(*values: int) -> bytes:
    return np.array(values, np.int32).tobytes()


def test_tokens_of_another_type_are_refused() -> None:
    with pytest.raises(TypeError, match="int32 array, got int64"):
        Key(np.array([1, 2], np.int64))


@pytest.mark.parametrize(
    ("edge", "tokens", "at", "page_size", "expected"),
    [
        (raw(1, 2, 3), raw(1, 2, 3, 4), 0, 1, 3),
        (raw(1, 2, 3), raw(9, 1, 2, 4), 4, 1, 2),
        (raw(1, 2, 3), raw(1, 2), 0, 1, 2),
        (raw(1, 2, 3, 4), raw(1, 2, 3, 5), 0, 2, 2),
        (raw(256, 1), raw(256, 2), 0, 1, 1),
        (raw(1, 2), raw(1, 2 + (1 << 24)), 0, 1, 1),  # differs in its last byte only
    ],
)
def test_common_tokens_are_whole_and_page_aligned(edge, tokens, at, page_size, expected) -> None:
    assert common_tokens(edge, tokens, at, page_size) == expected


def test_limit_cuts_to_whole_pages() -> None:
    key = Key(np.arange(10, dtype=np.int32))
    assert len(key.tokens(9, 4)) == 8 * 4
    assert len(key.tokens(100, 4)) == 8 * 4
    assert key.tokens(3, 4) == b""
