"""What comes back from the host is what was there: random requests on a simulated device whose memory is taken away."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive_cache import Request
from naive_device import Device

from corymb.cache.cache import Cache
from corymb.cache.config import CacheConfig, HostConfig
from corymb.cache.key import Key
from corymb.cache.writes import TableWrites

POLICIES = ["write_through", "write_through_selective", "write_back"]


def int32(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


def config_of(kinds: tuple[str, ...], page_size: int, policy: str, *, pages: int = 24, host: int = 40) -> CacheConfig:
    sliding, recurrent = "sliding" in kinds, "recurrent" in kinds
    return CacheConfig(
        page_size=page_size,
        num_full_tokens=pages * page_size,
        num_sliding_tokens=pages * page_size if sliding else 0,
        sliding_window=5 if sliding else 0,
        num_states=9 if recurrent else 0,
        state_interval=page_size * 2,
        has_index="index" in kinds,
        num_rows=4,
        context_length=16 * page_size,
        host=HostConfig(
            num_full_tokens=host * page_size,
            num_sliding_tokens=host * page_size if sliding else 0,
            num_states=12 if recurrent else 0,
            policy=policy,
        ),
    )


class Desk:
    """A cache and a device that does what the cache says."""

    def __init__(self, config: CacheConfig) -> None:
        self.config = config
        self.cache = Cache(config)
        self.device = Device(config)
        self.open: list[Request] = []

    def begin(self, tokens: list[int]) -> Request | None:
        lease = self.cache.open(Key(int32(tokens)), len(tokens) - 1)
        self.cache.check()
        if lease is None:
            return None
        hit = lease.num_cached
        request = Request(lease, (None, None), list(tokens), 0, hit, hit, hit, None)
        self.open.append(request)
        return request

    def step(self, request: Request, width: int) -> bool:
        width = min(width, len(request.tokens) - request.computed)
        slots = self.cache.grow(int32([request.lease.row]), int32([width]))
        if slots is None:
            return False
        self.device.run(self.cache, [request], [width], slots)
        request.computed += width
        self.cache.slide(int32([request.lease.row]), int32([request.computed]))
        self.cache.check()
        return True

    def end(self, request: Request, *, keep: bool = True) -> None:
        done = int32(request.tokens[: request.computed]) if keep else None
        self.cache.close(request.lease, done)
        self.open.remove(request)
        self.cache.check()

    def send(self) -> None:
        """What is decided is on its way, with a step that has nothing to do with it."""
        self.device.take(self.cache.take_host_copies(int32([]), TableWrites.none(), None))

    def whole(self, tokens: list[int], chunk: int = 7) -> int:
        """Runs a request from its beginning to its end; returns how much of it was found."""
        request = self.begin(tokens)
        assert request is not None
        found = request.computed
        while request.computed < len(tokens):
            assert self.step(request, chunk)
        self.end(request)
        return found

    def forget(self, component: str = "full") -> None:
        self.cache.execute(self.cache.tree.evict({component: 1 << 30}))
        self.cache.check()


ALL_KINDS = [(), ("sliding",), ("recurrent",), ("sliding", "recurrent"), ("index",)]
KINDS = pytest.mark.parametrize("kinds", ALL_KINDS, ids=lambda kinds: "+".join(("full", *kinds)))


@KINDS
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("page_size", [1, 4])
def test_what_the_device_forgot_is_found_again(kinds, policy, page_size):
    desk = Desk(config_of(kinds, page_size, policy))
    tokens = list(range(1, 8 * page_size + 1))
    desk.whole(tokens)
    desk.whole(tokens)  # for the selective policy: used twice
    desk.forget()
    assert desk.cache.tree.num_nodes == 0
    assert desk.whole([*tokens, 0]) == len(tokens)
    assert desk.cache.host.moved.loaded["full"] == len(tokens)


@KINDS
@pytest.mark.parametrize("page_size", [1, 4])
def test_late_copies_are_waited_for_by_who_reads_or_overwrites_what_they_touch(kinds, page_size):
    desk = Desk(config_of(kinds, page_size, "write_through", pages=14))
    desk.device.is_late = True
    first, others = [1] * 8 * page_size, [[who] * 9 * page_size for who in (2, 3)]
    desk.whole(first)
    desk.send()
    desk.forget()
    desk.whole(others[0])  # in the slots that are on their way to the host
    desk.send()
    desk.forget()
    assert desk.whole([*first, 0]) == len(first), "which has what was there before, and the step that reads it waits"
    desk.send()
    desk.forget()
    desk.end(desk.begin([*first, 0]), keep=False)
    desk.send()  # it is on its way to the device, and nobody waits for it
    desk.forget()
    request = desk.begin(others[1])  # goes to the same slots
    desk.step(request, 5 * page_size)
    desk.device.do(1 << 30)
    desk.step(request, 4 * page_size)
    desk.end(request)


@pytest.mark.parametrize("component", ["sliding", "recurrent"])
def test_one_component_that_comes_back_late_is_waited_for(component):
    desk = Desk(config_of((component,), 1, "write_through", pages=40))
    desk.device.is_late = True
    desk.whole([1] * 8)
    desk.whole([1] * 8 + [9] * 4)  # so that the first is no leaf: nobody takes all of it
    desk.forget(component)
    for who in range(2, 5):
        desk.whole([who] * 7)  # in the slots that it had
    desk.send()
    desk.device.do(1 << 30)
    loaded = {**desk.cache.host.moved.loaded}
    assert desk.whole([1] * 9) == 8
    assert desk.cache.host.moved.loaded["full"] == loaded["full"], "only that component was lost"
    assert desk.cache.host.moved.loaded[component] > loaded[component]


def test_a_step_that_touches_nothing_of_a_copy_does_not_wait_for_it():
    desk = Desk(config_of(("sliding", "recurrent"), 1, "write_through"))
    desk.device.is_late = True
    desk.whole([1] * 8)
    desk.whole([2] * 8)
    assert [lot.number for lot in desk.device.lots if lot.copies], "what is stored waits for a step that needs it"


def test_what_was_used_once_is_not_stored_by_the_selective_policy():
    desk = Desk(config_of((), 1, "write_through_selective"))
    desk.whole([1, 2, 3, 4, 5])
    desk.whole([1, 2, 3, 9, 9])
    assert desk.cache.host.moved.stored["full"] == 3


@KINDS
@pytest.mark.parametrize("page_size", [1, 4])
def test_what_is_promised_is_what_a_request_finds_on_either_side(kinds, page_size):
    desk = Desk(config_of(kinds, page_size, "write_through"))
    tokens = list(range(1, 8 * page_size + 1))
    key, limit = Key(int32([*tokens, 0])), len(tokens)
    assert desk.cache.promise(key, limit) == 0
    desk.whole(tokens)
    assert (desk.cache.match(key, limit), desk.cache.promise(key, limit)) == (limit, limit)
    desk.forget()
    assert (desk.cache.match(key, limit), desk.cache.promise(key, limit)) == (0, limit)
    assert desk.cache.promise(key, 0) == 0
    assert desk.cache.host.tier.tree.num_nodes, "to be asked leaves no trace"
    assert desk.whole([*tokens, 0]) == limit


def test_both_tiers_are_pictured_each_with_what_it_holds():
    desk = Desk(config_of((), 1, "write_through"))
    desk.whole([1, 2, 3, 4])
    desk.whole([1, 2, 9])
    desk.forget()
    shown = desk.cache.picture(10)
    assert [(node.length, node.tier) for node in shown.nodes] == [(0, "device")]
    assert shown.host is not None
    assert [node.components.get("full", 0) for node in shown.host.nodes] == [0, 2, 1, 2]
    assert {node.tier for node in shown.host.nodes} == {"host"}
    few = desk.cache.picture(1)
    assert few.host is not None
    assert (len(few.host.nodes), few.host.truncated) == (2, True)


def test_nothing_is_stored_twice():
    desk = Desk(config_of(("sliding", "recurrent"), 1, "write_through"))
    tokens = list(range(1, 13))
    desk.whole(tokens)
    stored = dict(desk.cache.host.moved.stored)
    desk.whole(tokens)
    assert desk.cache.host.moved.stored == stored
    assert stored["full"] == len(tokens)


def test_namespaces_stay_apart_on_the_host():
    desk = Desk(config_of((), 1, "write_through"))
    desk.whole([1, 2, 3, 4])
    desk.forget()
    lease = desk.cache.open(Key(int32([1, 2, 3, 4, 5]), cache_salt="other"), 4)
    assert lease.num_cached == 0
    desk.cache.close(lease, None)


def test_the_host_forgets_what_was_used_least_recently():
    desk = Desk(config_of((), 1, "write_through", host=14))
    desk.whole([1] * 6)
    desk.whole([2] * 6)
    desk.whole([3] * 6)
    desk.forget()
    assert [desk.whole([who] * 7) for who in (2, 3)] == [6, 6]
    desk.forget()
    assert desk.whole([1] * 7) == 0


def test_a_beginning_that_does_not_fit_beside_what_runs_is_computed():
    desk = Desk(config_of((), 1, "write_through", pages=14))
    desk.whole([1] * 8)
    other = desk.begin([2] * 9)
    assert desk.step(other, 9)
    again = desk.begin([1] * 9)
    assert again.computed == 0
    desk.end(again, keep=False)
    desk.end(other)


def test_what_comes_back_is_not_overwritten_by_what_makes_room_for_it():
    desk = Desk(config_of((), 1, "write_back", pages=13, host=13))
    desk.whole([1] * 8)
    desk.forget()
    desk.whole([2] * 10)  # the device has no room beside it, and the host none for it beside the first
    assert desk.whole([1] * 9) == 8


def test_flushing_drops_both_tiers():
    desk = Desk(config_of(("sliding", "recurrent"), 4, "write_back"))
    tokens = list(range(1, 33))
    desk.whole(tokens)
    desk.forget()
    assert desk.cache.flush()
    desk.cache.check()
    assert desk.whole([*tokens, 0]) == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"enable_prefix_cache": False}, "has nothing to keep"),
        ({"page_size": 4, "num_full_tokens": 16}, "num_full_tokens is 6: make it whole pages of 4"),
        ({"num_sliding_tokens": 8, "sliding_window": 2}, "the host's num_sliding_tokens is 0"),
        ({"num_states": 4}, "the host's num_states is 0"),
    ],
)
def test_sizes_that_cannot_work_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        Cache(CacheConfig(**({"num_full_tokens": 16, "host": HostConfig(num_full_tokens=6)} | options)))


acts = st.tuples(
    st.sampled_from(["begin", "begin", "step", "step", "step", "commit", "end", "end", "drop", "full", "auxiliary"]),
    st.integers(0, 1 << 16),
    st.integers(1, 20),
)


@settings(suppress_health_check=HealthCheck)
@given(
    kinds=st.sampled_from(ALL_KINDS),
    page_size=st.sampled_from([1, 4]),
    policy=st.sampled_from(POLICIES),
    sizes=st.tuples(st.integers(6, 24), st.integers(4, 30)),
    history=st.lists(acts, min_size=10, max_size=60),
)
def test_random_requests_read_back_what_they_wrote(kinds, page_size, policy, sizes, history):
    desk = Desk(config_of(kinds, page_size, policy, pages=sizes[0], host=sizes[1]))
    texts = [[1] * page_size]
    for act, pick, size in history:
        request = desk.open[pick % len(desk.open)] if desk.open else None
        if act == "begin":
            base = texts[pick % len(texts)]
            tokens = base[: pick // 7 % (len(base) + 1)] + [pick % 2 + 1] * size * page_size
            desk.begin(tokens[: desk.config.context_length])
        elif act in {"full", "auxiliary"}:
            desk.forget("full" if act == "full" or not {*kinds} - {"index"} else kinds[pick % len(kinds)])
        elif request is not None and act == "step":
            desk.step(request, size) if request.computed < len(request.tokens) else None
        elif request is not None and act == "commit" and request.computed > request.lease.num_cached:
            desk.cache.commit(request.lease, int32(request.tokens[: request.computed]))
            desk.cache.check()
        elif request is not None and act in {"end", "drop"}:
            texts.append(request.tokens[: request.computed] or [1])
            desk.end(request, keep=act == "end")
