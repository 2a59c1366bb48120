"""A request's life in the cache, by page size, with and without a sliding pool."""

import numpy as np
import pytest

from corymb.cache.cache import UNBOUNDED, Cache
from corymb.cache.config import CacheConfig
from corymb.cache.key import Key
from corymb.cache.lease import Lease


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def tokens(count: int, start: int = 0) -> np.ndarray:
    return np.arange(start, start + count, dtype=np.int32)


def make(page_size: int = 1, *, num_tokens: int = 160, window: int = 0, num_sliding: int = 160, **kwargs) -> Cache:
    return Cache(
        CacheConfig(
            num_full_tokens=num_tokens,
            num_sliding_tokens=num_sliding if window else 0,
            sliding_window=window,
            page_size=page_size,
            **{"num_rows": 5, "context_length": 128} | kwargs,
        )
    )


def grow(cache: Cache, lease: Lease, width: int) -> np.ndarray:
    slots = cache.grow(int32(lease.row), int32(width))
    assert slots is not None
    cache.check()
    return slots


def run(cache: Cache, token_ids: np.ndarray, *, salt: str | None = None, **kwargs) -> Lease:
    """Opens, computes and closes a whole sequence."""
    lease = cache.open(Key(token_ids, cache_salt=salt), len(token_ids) - 1, **kwargs)
    assert lease is not None
    grow(cache, lease, len(token_ids) - lease.num_cached)
    cache.close(lease, token_ids)
    cache.check()
    return lease


@pytest.fixture(params=[1, 4, 16])
def page_size(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(params=[0, 6], ids=["full", "sliding"])
def window(request: pytest.FixtureRequest) -> int:
    return request.param


def test_second_request_finds_what_the_first_left(page_size: int, window: int) -> None:
    cache = make(page_size, window=window)
    prompt = tokens(40)
    assert run(cache, prompt).num_cached == 0
    expected = 39 - 39 % page_size
    assert cache.match(Key(prompt), 39) == expected
    lease = cache.open(Key(prompt), 39)
    assert lease is not None
    assert lease.num_cached == lease.num_reserved == expected
    cache.check()


def test_hit_is_capped_by_the_limit_and_page_aligned(page_size: int) -> None:
    cache = make(page_size)
    run(cache, tokens(40))
    for limit in range(41):
        assert cache.match(Key(tokens(40)), limit) == min(limit, 40) // page_size * page_size


def test_close_with_none_keeps_nothing_of_its_own(page_size: int, window: int) -> None:
    cache = make(page_size, window=window)
    before = cache.available()
    lease = cache.open(Key(tokens(40)), 39)
    assert lease is not None
    grow(cache, lease, 40)
    cache.close(lease, None)
    cache.check()
    assert cache.available() == before
    assert cache.match(Key(tokens(40)), 39) == 0


def test_second_close_is_refused() -> None:
    cache = make()
    lease = run(cache, tokens(3))
    with pytest.raises(ValueError, match="closed already"):
        cache.close(lease, None)


def test_without_a_sliding_pool_its_room_is_unbounded() -> None:
    cache = make()
    assert cache.available().sliding == UNBOUNDED
    assert cache.take_sliding_writes() is None
