"""Recurrent layers on a CPU: against their definitions, and the same bits however a sequence is cut."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from corymb.kernels import reference_recurrence as reference
from corymb.kernels.attention import RaggedLayout, StateMarks
from corymb.kernels.chunks import cut
from corymb.kernels.recurrence import GRID, Convolution, DeltaRule, GatedNorm, StateSpace
from corymb.kernels.torch_recurrence import TorchRecurrence

FAST = TorchRecurrence()
NOTHING = torch.zeros(0, dtype=torch.int32)
ROWS = [([1], [5]), ([1, 1, 1], [0, 63, 64]), ([150, 1, 64, 3], [10, 128, 64, 61]), ([200], [0])]


def layout_of(widths: Sequence[int], starts: Sequence[int]) -> RaggedLayout:
    """Rows with these widths; row r has state slot r + 2."""
    host_widths, host_starts = np.array(widths, np.int32), np.array(starts, np.int32)
    slots = torch.arange(len(widths)) + 2
    host = (np.arange(1, len(widths) + 1, dtype=np.int32), host_widths, host_starts)
    unused = (NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, None, NOTHING, None)
    return RaggedLayout(*unused, *host, state_slots=slots)


@dataclass(frozen=True)
class Operation:
    """One operation on random inputs: `run(back end, layout, inputs, states)`."""

    inputs: tuple[Tensor, ...]
    states: Tensor
    run: Callable[..., Tensor]


def convolution(num_tokens: int, num_slots: int, *, bias: bool = True, silu: bool = True, width: int = 4) -> Operation:
    weights = Convolution(torch.randn(width, 12), torch.randn(12) if bias else None, silu)
    return Operation(
        (torch.randn(num_tokens, 12),),
        torch.randn(num_slots, width - 1, 12),
        lambda end, layout, inputs, states: end.convolve(*inputs, weights, states, layout),
    )


def delta_rule(num_tokens: int, num_slots: int, *, heads: tuple[int, int] = (2, 4), dim: int = 16) -> Operation:
    keys, values = heads
    rule = DeltaRule(keys, values, dim, dim + 8, rate=-torch.rand(values) * 4, bias=torch.randn(values))
    size = keys * 2 * dim + values * (dim + 8)
    inputs = (torch.randn(num_tokens, size), torch.randn(num_tokens, values), torch.randn(num_tokens, values) - 2)
    return Operation(
        inputs,
        torch.randn(num_slots, values, dim, dim + 8),
        lambda end, layout, inputs, states: end.apply_delta_rule(*inputs, rule, states, layout),
    )


def scan(num_tokens: int, num_slots: int, *, heads: tuple[int, int] = (2, 4), dim: int = 16) -> Operation:
    groups, num_heads = heads
    space = StateSpace(
        num_heads, dim, groups, dim + 8, -torch.rand(num_heads) * 4, torch.randn(num_heads), torch.randn(num_heads),
        least_step=0.01, most_step=0.9,
    )  # fmt: skip
    inputs = (torch.randn(num_tokens, num_heads * dim + groups * 2 * (dim + 8)), torch.randn(num_tokens, num_heads))
    return Operation(
        inputs,
        torch.randn(num_slots, num_heads, dim + 8, dim),
        lambda end, layout, inputs, states: end.scan(*inputs, space, states, layout),
    )


def assert_near(actual: Tensor, expected: Tensor) -> None:
    """No element is off by more than float32's rounding of the largest."""
    torch.testing.assert_close(actual.double(), expected, atol=1e-6 * float(expected.abs().max()), rtol=1e-5)


OPERATIONS: dict[str, Callable[[int, int], Operation]] = {
    "convolution": convolution,
    "convolution, plain": lambda tokens, slots: convolution(tokens, slots, bias=False, silu=False, width=3),
    "delta rule": delta_rule,
    "delta rule, wide": lambda tokens, slots: delta_rule(tokens, slots, heads=(2, 2), dim=128),
    "scan": scan,
    "scan, one group": lambda tokens, slots: scan(tokens, slots, heads=(1, 8), dim=64),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize(("widths", "starts"), ROWS)
def test_operation_is_what_its_definition_says(name: str, widths: list[int], starts: list[int]) -> None:
    torch.manual_seed(sum(widths))
    layout = layout_of(widths, starts)
    operation = OPERATIONS[name](sum(widths), len(widths) + 3)
    states, exact_states = operation.states.clone(), operation.states.double()
    out = operation.run(FAST, layout, operation.inputs, states)
    expected = operation.run(reference, layout, operation.inputs, exact_states)
    assert_near(out, expected)
    assert_near(states, exact_states)
    assert torch.equal(states[:2], operation.states[:2])
    assert torch.equal(states[len(widths) + 2 :], operation.states[len(widths) + 2 :])


@pytest.mark.parametrize("name", OPERATIONS)
@settings(max_examples=12)
@given(start=st.integers(0, 3), width=st.integers(2, 5), numbers=st.randoms(use_true_random=False))
def test_cuts_on_the_grid_change_no_bit(name: str, start: int, width: int, numbers) -> None:
    torch.manual_seed(numbers.randrange(1 << 30))
    first, total = start * GRID, width * GRID - numbers.randrange(GRID)
    whole = OPERATIONS[name](total, 3)
    on_grid = {numbers.randrange(1, width) * GRID for _ in range(2)}
    # Behind the last multiple of the grid a sequence may be cut anywhere.
    parts = sorted({0, total, *on_grid, *(numbers.randrange(total // GRID * GRID, total + 1) for _ in range(2))})
    parts = [end for end in parts if end <= total]
    states = whole.states.clone()
    expected = whole.run(FAST, layout_of([total], [first]), whole.inputs, states)
    again = whole.states.clone()
    outs = [
        whole.run(FAST, layout_of([b - a], [first + a]), tuple(one[a:b] for one in whole.inputs), again)
        for a, b in pairwise(parts)
    ]
    assert torch.equal(torch.cat(outs), expected)
    assert torch.equal(again, states)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_row_gives_the_same_bits_in_any_company(name: str) -> None:
    torch.manual_seed(7)
    widths, starts = [70, 1, 129, 1, 1], [0, 63, 5, 64, 7]
    operation, layout = OPERATIONS[name](sum(widths), 8), layout_of(widths, starts)
    together_states = operation.states.clone()
    together = operation.run(FAST, layout, operation.inputs, together_states).split(widths)
    ends = np.cumsum(widths)
    for row, (width, start) in enumerate(zip(widths, starts, strict=True)):
        states = operation.states.clone()
        alone = replace(layout_of([width], [start]), state_slots=torch.tensor([row + 2]))
        out = operation.run(FAST, alone, tuple(one[ends[row] - width : ends[row]] for one in operation.inputs), states)
        assert torch.equal(out, together[row]), row
        assert torch.equal(states[row + 2], together_states[row + 2]), row


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("kept", range(6))
def test_drafts_that_are_taken_back_and_gone_through_again_change_no_bit(name: str, kept: int) -> None:
    """Whatever of a window of five is kept: verified against frozen states, then replayed; and one by one."""
    torch.manual_seed(11)
    widths, starts, num_slots = [5, 1, 3], [62, 7, 0], 9
    operation, ends = OPERATIONS[name](sum(widths), num_slots), np.cumsum(widths)
    frozen, plain = operation.states.clone(), operation.states.clone()
    verified = operation.run(FAST, replace(layout_of(widths, starts), moves_states=False), operation.inputs, frozen)
    assert torch.equal(frozen, operation.states), "a state has moved"
    counts = [min(kept, width) for width in widths]
    for row, count in enumerate(counts):
        for nth in range(count):
            at = ends[row] - widths[row] + nth
            one = replace(layout_of([1], [starts[row] + nth]), state_slots=torch.tensor([row + 2]))
            alone = operation.run(FAST, one, tuple(part[at : at + 1] for part in operation.inputs), plain)
            assert torch.equal(alone[0], verified[at])
            if nth == 1:
                plain[row + 6] = plain[row + 2]  # wanted after two
    rows = [row for row, count in enumerate(counts) if count]
    if rows:
        tokens = torch.cat([torch.arange(counts[row]) + int(ends[row]) - widths[row] for row in rows])
        layout = layout_of([counts[row] for row in rows], [starts[row] for row in rows])
        after = np.array([2 if counts[row] >= 2 else 0 for row in rows], np.int32)
        marks = StateMarks(torch.from_numpy(after), torch.tensor(rows) + 6, after)
        again = replace(layout, state_slots=torch.tensor(rows) + 2, marks=marks)
        operation.run(FAST, again, tuple(part[tokens] for part in operation.inputs), frozen)
    assert torch.equal(frozen, plain)


def test_strong_repeated_keys_stay_exact() -> None:
    """A key that comes again and again makes a system of equations whose powers overflow."""
    operation = delta_rule(GRID, 3)
    qkv = operation.inputs[0][:1].expand(GRID, -1)
    inputs = (qkv, torch.full((GRID, 4), 9.0), torch.full((GRID, 4), -30.0))
    layout, states, exact_states = layout_of([GRID], [0]), operation.states.clone(), operation.states.double()
    out = operation.run(FAST, layout, inputs, states)
    torch.testing.assert_close(out.double(), operation.run(reference, layout, inputs, exact_states), atol=1e-4, rtol=0)


def test_extreme_decays_stay_finite() -> None:
    operation = scan(2 * GRID, 3)
    inputs = (operation.inputs[0], torch.full((2 * GRID, 4), 1e4))
    states = operation.states.clone()
    assert operation.run(FAST, layout_of([2 * GRID], [0]), inputs, states).isfinite().all()
    assert states.isfinite().all()


@pytest.mark.parametrize("norm", [None, False, True], ids=["no norm", "gate after", "gate before"])
def test_gate(norm: bool | None) -> None:
    weights = None if norm is None else GatedNorm(torch.randn(3, 16), 1e-5, gate_first=norm)
    x, gate = torch.randn(5, 3, 16), torch.randn(5, 3, 16)
    assert_near(FAST.gate(x, gate, weights), reference.gate(x, gate, weights))


def test_pieces_end_on_the_grid() -> None:
    chunks = cut(layout_of([150, 1, 64, 3], [10, 128, 64, 61]))
    assert chunks.rows.tolist() == [0, 0, 0, 1, 2, 3]
    assert chunks.firsts.tolist() == [0, 54, 118, 150, 151, 215, 218]
    assert chunks.row_chunks.tolist() == [0, 3, 4, 5, 6]
