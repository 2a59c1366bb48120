"""Recurrent layers in Triton against their definitions: pieces of long rows, short rows, and single tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from corymb.kernels import reference_recurrence as reference
from corymb.kernels.attention import RaggedLayout, StateMarks
from corymb.kernels.recurrence import GRID, Convolution, DeltaRule, GatedNorm, StateSpace
from corymb.kernels.triton_recurrence import TritonRecurrence

TINY = [([1, 1, 1], [5, 64, 0]), ([70, 3, 1], [50, 63, 9])]
LARGE = ([1000, 1, 64, 7, 129, 9], [37, 5, 128, 62, 0, 4000])
ROWS = [*TINY, pytest.param(LARGE, marks=pytest.mark.gpu)]
DTYPES = [torch.float32, torch.bfloat16]
REAL = pytest.param("real", marks=pytest.mark.gpu)


@dataclass(frozen=True)
class Case:
    """One operation on random inputs."""

    inputs: tuple[Tensor, ...]
    states: Tensor
    layout: RaggedLayout
    run: Callable[..., Tensor]

    def check(self, place, back_end, tolerance: float) -> None:
        """Outputs and states are what the definition says; slots of nobody are left alone."""
        states, exact = apart(self.states), self.states.double()
        expected = self.run(reference, self.layout, self.inputs, exact)
        out = self.run(back_end, self.layout, self.inputs, states)
        used = self.layout.state_slots
        place.assert_close(out, expected, tolerance)
        place.assert_close(states[used], exact[used], tolerance)
        others = torch.ones(len(states), dtype=torch.bool, device=states.device)
        others[used] = False
        assert torch.equal(states[others], self.states[others])


def apart(states: Tensor) -> Tensor:
    """A copy as a pool holds it: other layers' states lie between a layer's."""
    flat = states.flatten(1)
    return torch.cat((flat, flat[:, :32].clone().fill_(torch.nan)), dim=1)[:, : flat.shape[1]].view(states.shape)


@pytest.fixture
def make(place, lay_out):
    """A factory of layouts with state slots in a random order; slot 0 is nobody's."""

    def layout_of(widths: Sequence[int], starts: Sequence[int]) -> RaggedLayout:
        layout = lay_out(widths, starts)
        slots = place.numbers.permutation(len(widths) + 3) + 1
        return replace(layout, state_slots=place.put(slots[: len(widths)]))

    def states(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return place.normal(*shape, dtype=dtype)

    def convolution(rows, dtype: torch.dtype, *, channels: int, width: int, bias: bool, silu: bool) -> Case:
        layout = layout_of(*rows)
        weights = Convolution(place.normal(width, channels), place.normal(channels) if bias else None, silu)
        joined = place.normal(layout.num_tokens, channels + 5, dtype=dtype)
        return Case(
            (joined[:, 3 : channels + 3],),
            states(len(layout.host_rows) + 4, width - 1, channels, dtype=dtype),
            layout,
            lambda end, layout, inputs, states: end.convolve(*inputs, weights, states, layout),
        )

    def delta_rule(rows, dtype: torch.dtype, *, heads: tuple[int, int], dims: tuple[int, int]) -> Case:
        layout, (keys, values) = layout_of(*rows), heads
        rule = DeltaRule(*heads, *dims, rate=-place.normal(values).abs() * 2, bias=place.normal(values))
        size = 2 * keys * dims[0] + values * dims[1]
        gates = place.normal(layout.num_tokens, 2 * values + 3, dtype=dtype)
        inputs = (
            place.normal(layout.num_tokens, size, dtype=dtype),
            gates[:, :values],
            gates[:, values : 2 * values] - 1,
        )
        return Case(
            inputs,
            states(len(layout.host_rows) + 4, values, *dims),
            layout,
            lambda end, layout, inputs, states: end.apply_delta_rule(*inputs, rule, states, layout),
        )

    def scan(rows, dtype: torch.dtype, *, heads: tuple[int, int], dims: tuple[int, int]) -> Case:
        layout, (groups, num_heads) = layout_of(*rows), heads
        rate, bias, skip = -place.normal(num_heads).abs() * 2, place.normal(num_heads), place.normal(num_heads)
        space = StateSpace(num_heads, dims[1], groups, dims[0], rate, bias, skip, least_step=0.01, most_step=1.5)
        size = num_heads * dims[1] + 2 * groups * dims[0]
        steps = place.normal(layout.num_tokens, num_heads + 3, dtype=dtype)[:, :num_heads]
        return Case(
            (place.normal(layout.num_tokens, size, dtype=dtype, scale=0.5), steps),
            states(len(layout.host_rows) + 4, num_heads, *dims),
            layout,
            lambda end, layout, inputs, states: end.scan(*inputs, space, states, layout),
        )

    return {"convolution": convolution, "delta rule": delta_rule, "scan": scan}


CONVOLUTIONS = {
    "bias and silu": {"channels": 20, "width": 4, "bias": True, "silu": True},
    "plain": {"channels": 70, "width": 3, "bias": False, "silu": False},
    "wide": {"channels": 8192, "width": 4, "bias": False, "silu": True},
}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", ["bias and silu", "plain", pytest.param("wide", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_convolution(place, make, tolerance, rows, name: str, dtype: torch.dtype) -> None:
    case = make["convolution"](rows, dtype, **CONVOLUTIONS[name])
    case.check(place, TritonRecurrence(place.launch), tolerance(dtype))


SHAPES = {
    "shared keys": {"heads": (1, 2), "dims": (16, 24)},
    "odd": {"heads": (2, 2), "dims": (24, 16)},
    "qwen": {"heads": (16, 32), "dims": (128, 128)},
    "falcon": {"heads": (2, 24), "dims": (256, 64)},
}
KINDS = [*("shared keys", "odd"), *(pytest.param(name, marks=pytest.mark.gpu) for name in ("qwen", "falcon"))]


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", KINDS)
@pytest.mark.parametrize("operation", ["delta rule", "scan"])
def test_states(place, make, rows, shape: str, operation: str) -> None:
    tolerance = 5e-6 if place.launch.interpreted else 2e-5  # tensor cores multiply float32 in three parts
    make[operation](rows, torch.float32, **SHAPES[shape]).check(place, TritonRecurrence(place.launch), tolerance)


@pytest.mark.parametrize("operation", ["delta rule", "scan"])
@pytest.mark.parametrize("shape", ["shared keys", *KINDS[2:]])
def test_states_in_bfloat16(place, make, operation: str, shape: str) -> None:
    case = make[operation](TINY[1], torch.bfloat16, **SHAPES[shape])
    case.check(place, TritonRecurrence(place.launch), 2e-2)


@pytest.mark.parametrize("operation", ["delta rule", "scan"])
def test_exact_folds_give_the_same_bits_wherever_rows_are_cut(place, make, lay_out, operation: str) -> None:
    width = 20 if place.launch.interpreted else 700
    case = make[operation](([width], [3]), torch.float32, heads=(1, 2), dims=(16, 16))
    back_end = TritonRecurrence(place.launch, exact=True)
    whole_states, states, outs, begin = case.states.clone(), case.states.clone(), [], 0
    whole = case.run(back_end, case.layout, case.inputs, whole_states)
    for end in (1, 2, width // 2, width):
        part = replace(lay_out([end - begin], [3 + begin]), state_slots=case.layout.state_slots)
        outs.append(case.run(back_end, part, tuple(one[begin:end] for one in case.inputs), states))
        begin = end
    assert torch.equal(torch.cat(outs), whole)
    assert torch.equal(states, whole_states)


def test_repeated_keys_stay_exact(place, make) -> None:
    """A key that comes again and again makes a system of equations whose powers overflow."""
    case = make["delta rule"](([GRID], [0]), torch.float32, heads=(1, 2), dims=(16, 16))
    qkv, strengths, decays = case.inputs
    inputs = (qkv[:1].expand(GRID, -1).contiguous(), torch.full_like(strengths, 9.0), torch.full_like(decays, -30.0))
    replace(case, inputs=inputs).check(place, TritonRecurrence(place.launch), 1e-5)


@pytest.mark.parametrize("operation", ["convolution", "delta rule", "scan"])
def test_padding_rows_change_nothing(place, make, pad, operation: str) -> None:
    """A captured graph is filled up with rows whose slot is 0."""
    shape = CONVOLUTIONS["plain"] if operation == "convolution" else SHAPES["odd"]
    case = make[operation](([1, 1], [5, 64]), torch.float32, **shape)
    padded = pad(case.layout, 4, place)
    slots = torch.cat((case.layout.state_slots, torch.zeros(2, dtype=torch.int64, device=place.device)))
    wider = tuple(torch.cat((one, place.poison(2, one.shape[1]))) for one in case.inputs)
    states, padded_states = case.states.clone(), case.states.clone()
    back_end = TritonRecurrence(place.launch)
    out = case.run(back_end, case.layout, case.inputs, states)
    padded_out = case.run(back_end, replace(padded, state_slots=slots), wider, padded_states)
    assert torch.equal(padded_out[:2], out)
    assert torch.equal(padded_states, states)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operation", ["convolution", "delta rule", "scan"])
def test_drafts_leave_states_alone_until_they_are_gone_through_again(
    place, make, tolerance, operation: str, dtype: torch.dtype
) -> None:
    """Only the device knows widths; of three drafts, none, two and one were kept, and a state is wanted on the way."""
    shape = CONVOLUTIONS["bias and silu"] if operation == "convolution" else SHAPES["odd"]
    case = make[operation](([3, 3, 3], [5, 61, 0]), dtype, **shape)
    unknown = replace(case.layout, host_widths=np.full(3, -1, np.int32))
    states, back_end = apart(case.states), TritonRecurrence(place.launch)
    out = case.run(back_end, replace(unknown, moves_states=False), case.inputs, states)
    expected = case.run(reference, replace(case.layout, moves_states=False), case.inputs, case.states.double())
    place.assert_close(out, expected, max(tolerance(dtype), 1e-5))
    assert torch.equal(states, case.states)
    marks = StateMarks(place.put(np.array([0, 1, 1], np.int32)), place.put(others(case.layout.state_slots)))
    kept = np.array([0, 2, 1], np.int32)
    case.run(back_end, replace(unknown, widths=place.put(kept), marks=marks), case.inputs, states)
    tokens = torch.tensor([3, 4, 6], device=place.device)
    known = replace(case.layout, host_widths=kept, marks=marks)
    exact = case.states.double()
    case.run(reference, known, tuple(one[tokens] for one in case.inputs), exact)
    place.assert_close(states, exact, max(tolerance(dtype), 1e-5))


def others(slots: torch.Tensor) -> "np.ndarray":
    """As many slots that are nobody's."""
    free = set(range(1, len(slots) + 4)) - set(slots.tolist())
    return np.array([*sorted(free), 1 + len(slots)][: len(slots)], np.int64)


@pytest.mark.parametrize("operation", ["convolution", "delta rule", "scan"])
def test_drafts_give_the_bits_of_decoding(place, make, lay_out, operation: str) -> None:
    shape = CONVOLUTIONS["plain"] if operation == "convolution" else SHAPES["odd"]
    case = make[operation](([4], [60]), torch.float32, **shape)
    back_end, plain, replayed = TritonRecurrence(place.launch), case.states.clone(), case.states.clone()
    verified = case.run(back_end, replace(case.layout, moves_states=False), case.inputs, replayed)
    for nth in range(4):
        one = replace(lay_out([1], [60 + nth]), state_slots=case.layout.state_slots)
        alone = case.run(back_end, one, tuple(part[nth : nth + 1] for part in case.inputs), plain)
        assert torch.equal(alone[0], verified[nth])
    nowhere = StateMarks(torch.zeros_like(case.layout.widths), torch.zeros_like(case.layout.state_slots))
    case.run(back_end, replace(case.layout, marks=nowhere), case.inputs, replayed)
    assert torch.equal(replayed, plain)


GATES = {"no norm": None, "gate after, shared": (1, False), "gate before": (3, True)}


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [24, pytest.param(1536, marks=pytest.mark.gpu)])
def test_gate(place, tolerance, name: str, dtype: torch.dtype, dim: int) -> None:
    norm = None
    if GATES[name] is not None:
        weights, first = GATES[name]
        norm = GatedNorm(place.normal(weights, dim), 1e-5, gate_first=first)
    x, joined = place.normal(5, 3, dim, dtype=dtype), place.normal(5, 3 * dim + 7, dtype=dtype)
    gate = joined[:, 7:].view(5, 3, dim)
    out = TritonRecurrence(place.launch).gate(x, gate, norm)
    place.assert_close(out, reference.gate(x, gate, norm), tolerance(dtype))
