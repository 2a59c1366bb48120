"""What a GPU decides without the host is what the host would have decided; and how its steps are measured."""

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from corymb.cache.config import CacheConfig
from corymb.kernels import allotting
from corymb.kernels.noise import keys_of, other_keys, row_keys
from corymb.kernels.packing import Windows, pack
from corymb.models.batch import build_layout
from corymb.models.locating import widen
from corymb.models.placement import Place
from corymb.models.rows import Rows
from corymb.scheduler.plan import StepPlan, StepResult
from corymb.speculative.allocation import LEAST_SURVIVAL, allot
from corymb.speculative.cost_model import filled_up_to
from corymb.speculative.device_ngram import continuations
from corymb.speculative.measuring import run_in_turns
from corymb.speculative.ngram import continuation

CPU = Place(torch.device("cpu"))


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**31 - 1)), min_size=1, max_size=5))
def test_keys_are_the_hosts(pairs: list[tuple[int, int]]) -> None:
    seeds, indices = np.array([seed for seed, _ in pairs], np.uint64), np.array([one for _, one in pairs], np.int32)
    of_device = torch.from_numpy(seeds.view(np.int64)), torch.from_numpy(indices.astype(np.int64))
    assert keys_of(*of_device).tolist() == row_keys(seeds, indices).tolist()
    assert keys_of(*of_device, other=True).tolist() == other_keys(seeds, indices).tolist()


@st.composite
def offers(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """Survivals with many equals and some that are worth nothing, most drafts of each row, and a budget."""
    num_rows, num_drafts = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    steps = st.sampled_from([1.0, 1.0, 0.5, 0.3, LEAST_SURVIVAL])
    conditional = [[draw(steps) for _ in range(num_drafts)] for _ in range(num_rows)]
    most = [draw(st.integers(0, num_drafts)) for _ in range(num_rows)]
    survivals = np.cumprod(np.array(conditional, np.float32), axis=1, dtype=np.float32)
    return survivals, np.array(most, np.int32), draw(st.integers(0, num_rows * num_drafts + 1))


@given(offers())
def test_windows_are_the_hosts(offer: tuple[np.ndarray, np.ndarray, int]) -> None:
    survivals, most, budget = offer
    windows = allotting.allot(torch.from_numpy(survivals), torch.from_numpy(most), budget, least=LEAST_SURVIVAL)
    assert windows.dtype == torch.int32
    assert windows.tolist() == allot(survivals, most, budget).tolist()


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14), min_size=1, max_size=3),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 4),
)
def test_continuations_are_the_hosts(texts: list[list[int]], count: int, least: int, more: int) -> None:
    longest = least + more
    said = torch.full(
        (len(texts), max(map(len, texts)) + 2), 1, dtype=torch.int32
    )  # what lies behind a row, others said
    for row, text in zip(said, texts, strict=True):
        row[: len(text)] = torch.tensor(text)
    lengths = torch.tensor([len(text) - 1 for text in texts])
    found = continuations(said, lengths, count, least=least, longest=longest)
    assert found.counts is not None
    for text, drafts, number in zip(texts, found.token_ids.tolist(), found.counts.tolist(), strict=True):
        wanted = continuation(np.array(text, np.int32), count, least=least, longest=longest).tolist()
        assert drafts == [*wanted, *[0] * (count - len(wanted))]
        assert number == len(wanted)


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3)), min_size=1, max_size=4), st.integers(0, 5), st.booleans()
)
def test_windows_are_packed_as_the_host_lays_them_out(
    standing: list[tuple[int, int]], padding: int, sliding: bool
) -> None:
    num_rows, numbers = len(standing), np.random.default_rng(len(standing) + padding)
    config = CacheConfig(
        num_full_tokens=200, num_sliding_tokens=200 if sliding else 0, sliding_window=4, num_rows=5, context_length=16
    )
    rows = Rows(config, CPU)
    table = numbers.permutation(np.arange(1, 81, dtype=np.int32)).reshape(5, 16)
    table[0] = 0
    rows.table.copy_(torch.from_numpy(table))
    if rows.full_to_sliding is not None:
        rows.full_to_sliding.copy_(torch.from_numpy(numbers.permutation(200).astype(np.int32)))
    order = (numbers.permutation(4)[:num_rows] + 1).astype(np.int32)
    starts, windows = (np.array(each, np.int32) for each in zip(*standing, strict=True))
    anchors, drafts = numbers.integers(0, 90, num_rows), numbers.integers(0, 90, (num_rows, 3))
    plan = StepPlan(0, order, np.ones(num_rows, np.int32), starts, anchors.astype(np.int32), order, order > 0, starts)
    wide = widen(plan, rows, drafts.astype(np.int32), 1 + windows)
    expected = build_layout(wide, rows, CPU)
    count = wide.num_tokens
    place = [torch.from_numpy(one) for one in (order.astype(np.int64), starts, 1 + windows, anchors, drafts)]
    packed = pack(Windows(*place), rows.table, rows.full_to_sliding, count + padding)
    for name in ("positions", "slots", "sliding_slots"):
        mine, other = getattr(packed, name), getattr(expected, name)
        assert (mine is None) == (other is None)
        assert mine is None or mine[:count].tolist() == other.tolist()
    assert packed.token_ids[:count].tolist() == wide.token_ids.tolist()
    assert packed.owners.tolist() == [*np.repeat(np.arange(num_rows), 1 + windows), *[num_rows] * padding]
    assert packed.places[:count].tolist() == [place for window in windows.tolist() for place in range(window + 1)]
    # Then rows of the padding's tokens, and rows of nothing.
    further = count + padding - num_rows
    assert packed.rows.tolist() == [*order, *[0] * further]
    assert packed.starts.tolist() == [*starts, *[0] * further]
    assert packed.widths.tolist() == [*(1 + windows), *[1] * padding, *[0] * (further - padding)]
    assert packed.offsets.tolist() == [0, *np.cumsum(packed.widths.numpy())]
    for name in ("token_ids", "positions", "slots", "places"):
        assert not getattr(packed, name)[count:].any()


def test_steps_are_filled_up_to_what_was_captured() -> None:
    tier = filled_up_to([1, 4, 8])
    assert tier(np.array([1, 2, 4, 5, 8, 9, 100])).tolist() == [1, 4, 4, 8, 8, 9, 100]
    assert filled_up_to([])(np.array([3])).tolist() == [3]


def test_steps_are_measured_one_behind_the_other() -> None:
    class Runner:
        """Keeps in what order steps were launched and read."""

        def __init__(self) -> None:
            self.order: list[tuple[str, int]] = []

        def launch(self, plan: StepPlan) -> StepResult:
            self.order.append(("launch", plan.step))
            return Step(self, plan.step)

        def close(self) -> None:
            pass

    @dataclass
    class Step:
        runner: Runner
        number: int

        def wait(self) -> int:
            self.runner.order.append(("wait", self.number))
            return self.number

    runner, none = Runner(), np.zeros(0, np.int32)
    plans = [StepPlan(number, none, none, none, none, none, none > 0, none) for number in range(3)]
    assert run_in_turns(runner, plans) == [0, 1, 2]
    launches = [("launch", 0), ("launch", 1), ("wait", 0), ("launch", 2), ("wait", 1), ("wait", 2)]
    assert runner.order == launches
