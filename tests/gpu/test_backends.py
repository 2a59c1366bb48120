"""Which back end serves which step, and FlashInfer behind our contract."""

import importlib
import sys
import types

import numpy as np
import pytest
import torch

from corymb.kernels.attention import AttentionSpec, KVLayer
from corymb.kernels.mixed_attention import MixedAttention
from corymb.kernels.reference_attention import attend
from corymb.kernels.select import Selected, UnavailableBackend, Wish, has_flashinfer, select
from corymb.kernels.triton_gather import gather_heads
from corymb.kernels.triton_indices import gather_slots

LLAMA = AttentionSpec(num_heads=32, num_kv_heads=8, head_dim=128, scale=128**-0.5)
SMOLLM = AttentionSpec(num_heads=9, num_kv_heads=3, head_dim=64, scale=0.125)
SLIDING = AttentionSpec(num_heads=8, num_kv_heads=2, head_dim=128, scale=0.1, window=200)


def test_the_best_that_is_installed_is_chosen() -> None:
    assert select(Wish(), has_flashinfer=True) == Selected("flashinfer", "triton")
    fallen_back = select(Wish(), has_flashinfer=False)
    assert (fallen_back.prefill, fallen_back.decode) == ("triton", "triton")
    assert "not installed" in (fallen_back.note or "")
    assert select(Wish(deterministic=True), has_flashinfer=True) == Selected("triton", "triton")


def test_what_only_ours_can_do_is_theirs_by_no_wish() -> None:
    assert select(Wish(), has_flashinfer=True, ours="attention sinks") == Selected("triton", "triton")
    with pytest.raises(UnavailableBackend, match=r"models with attention sinks .* --attention-backend triton"):
        select(Wish(prefill="flashinfer"), has_flashinfer=True, ours="attention sinks")


def test_a_phase_has_its_own_wish() -> None:
    assert select(Wish(both="triton", decode="flashinfer"), has_flashinfer=True) == Selected("triton", "flashinfer")
    assert select(Wish(both="torch"), has_flashinfer=False) == Selected("torch", "torch")


@pytest.mark.parametrize(
    ("wish", "installed"),
    [
        (Wish(both="flashinfer"), False),
        (Wish(both="flashinfer", deterministic=True), True),
        (Wish(decode="torch"), True),
    ],
)
def test_what_cannot_work_is_refused(wish, installed) -> None:
    with pytest.raises(UnavailableBackend, match="--attention-backend"):
        select(wish, has_flashinfer=installed)


class Recorder:
    """A back end that tells what it was asked."""

    def __init__(self) -> None:
        self.calls = []

    def plan(self, layout) -> None:
        self.calls.append("plan")

    def plan_graph(self, layout) -> None:
        self.calls.append("plan_graph")

    def plan_captured(self) -> None:
        self.calls.append("plan_captured")

    def run(self, *arguments):
        self.calls.append("run")

    run_joined = run


def test_short_rows_go_to_one_back_end_and_long_ones_to_the_other(lay_out) -> None:
    prefill, decode = Recorder(), Recorder()
    attention = MixedAttention(prefill, decode)
    for widths in ([1, 1], [1, 30], [3, 8]):
        attention.plan(lay_out(widths, [5, 5]))
        attention.run(None, None, None, LLAMA, None)
    attention.plan_graph(lay_out([1], [4]))
    attention.plan_captured()
    assert decode.calls == ["plan", "run", "plan", "run", "plan_graph", "plan_captured"]
    assert prefill.calls == ["plan", "run"]


@pytest.mark.parametrize("sliding", [False, True])
def test_slots_are_listed_row_after_row(place, lay_out, sliding) -> None:
    layout = lay_out([2, 1, 4], [1500, 0, 30], sliding=sliding)
    firsts = np.array([700, 0, 3], np.int32)
    lengths = layout.host_starts + layout.host_widths
    bounds = np.concatenate(([0], np.cumsum(lengths - firsts))).astype(np.int32)
    out = torch.full((int(bounds[-1]) + 3,), -5, dtype=torch.int32, device=place.device)
    gather_slots(layout, place.put(firsts), place.put(bounds), out, sliding=sliding, launch=place.launch)
    lists = [layout.table[row, f:n] for row, f, n in zip(layout.host_rows.tolist(), firsts, lengths, strict=True)]
    expected = torch.cat(lists).long()
    if sliding:
        expected = layout.full_to_sliding[expected].long()
    assert torch.equal(out[:-3].long(), expected)
    assert (out[-3:] == -5).all()


class PlainWrapper:
    """FlashInfer 0.6.13's wrappers in plain torch: the same signatures, as far as we use them."""

    def __init__(self, float_workspace_buffer, kv_layout="NHD", **buffers) -> None:
        self.buffers = buffers

    def run(self, q, paged_kv_cache, *, k_scale=None, v_scale=None, out=None):
        keys, values = (pool[:, 0].double() for pool in paged_kv_cache)
        for row, (low, high) in enumerate(zip(self.key_bounds, self.key_bounds[1:], strict=False)):
            slots = self.indices[low:high].long()
            for token in range(self.query_bounds[row], self.query_bounds[row + 1]):
                seen = high - low - (self.query_bounds[row + 1] - token) + 1
                first = 0 if self.options["window_left"] < 0 else max(0, seen - 1 - self.options["window_left"])
                group = q.shape[1] // keys.shape[1]
                k, v = (pool[slots[first:seen]].repeat_interleave(group, dim=1) for pool in (keys, values))
                scores = torch.einsum("hd,lhd->hl", q[token].double(), k) * self.options["sm_scale"] * (k_scale or 1.0)
                weighted = torch.einsum("hl,lhd->hd", scores.softmax(-1), v) * (v_scale or 1.0)
                out[token] = weighted.to(out.dtype)
        return out


class PlainPrefill(PlainWrapper):
    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads, num_kv_heads,
        head_dim_qk, page_size, *, causal, max_token_per_sequence, sm_scale, window_left, logits_soft_cap, q_data_type,
        kv_data_type,
    ) -> None:  # fmt: skip
        assert causal
        assert (paged_kv_last_page_len == 1).all()
        assert int((qo_indptr[1:] - qo_indptr[:-1]).max()) == max_token_per_sequence
        self.query_bounds, self.key_bounds = qo_indptr.tolist(), paged_kv_indptr.tolist()
        self.indices, self.options = paged_kv_indices, {"sm_scale": sm_scale, "window_left": window_left}


class PlainRagged(PlainWrapper):
    def plan(
        self, qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, *, causal, sm_scale, window_left,
        logits_soft_cap, q_data_type, kv_data_type,
    ) -> None:  # fmt: skip
        assert causal
        assert q_data_type == kv_data_type, "FA3 takes one type"
        self.query_bounds, self.key_bounds = qo_indptr.tolist(), kv_indptr.tolist()
        self.indices, self.options = torch.arange(kv_indptr[-1]), {"sm_scale": sm_scale, "window_left": window_left}

    def run(self, q, k, v, *, out=None):
        assert len(k) == len(v) == self.key_bounds[-1]
        return super().run(q, (k.unsqueeze(1), v.unsqueeze(1)), out=out)


class PlainDecode(PlainWrapper):
    def plan(
        self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, *, sm_scale, window_left,
        logits_soft_cap, q_data_type, kv_data_type,
    ) -> None:  # fmt: skip
        assert not len(indices), "the buffer is filled already"
        assert len(indptr) == len(self.buffers["paged_kv_indptr_buffer"])
        self.query_bounds, self.key_bounds = list(range(len(indptr))), indptr.tolist()
        self.indices = self.buffers["paged_kv_indices_buffer"]
        self.options = {"sm_scale": sm_scale, "window_left": window_left}


@pytest.mark.parametrize("held", [torch.float32, torch.float8_e4m3fn], ids=str)
def test_copied_keys_and_values_are_those_of_the_slots(place, held) -> None:
    keys, values = (place.normal(50, 3, 24).to(held) for _ in range(2))
    slots = place.put(place.numbers.integers(0, 50, 23).astype(np.int32))
    copies = [place.poison(25, 3, 24) for _ in range(2)]
    gather_heads(KVLayer(keys, values, 0.5, 2.0), slots, copies[0][:23], copies[1][:23], launch=place.launch)
    scales = (0.5, 2.0) if held.itemsize == 1 else (1.0, 1.0)
    for pool, copy, scale in zip((keys, values), copies, scales, strict=True):
        assert torch.equal(copy[:23], pool.float()[slots.long()] * scale)
        assert copy[23:].isnan().all()


@pytest.fixture
def plain_flashinfer(monkeypatch):
    """Our module over plain wrappers."""
    module = types.ModuleType("flashinfer")
    module.BatchPrefillWithPagedKVCacheWrapper = PlainPrefill
    module.BatchPrefillWithRaggedKVCacheWrapper = PlainRagged
    module.BatchDecodeWithPagedKVCacheWrapper = PlainDecode
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.delitem(sys.modules, "corymb.kernels.flashinfer_attention", raising=False)
    yield
    sys.modules.pop("corymb.kernels.flashinfer_attention", None)


TINY = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25)
TINY_SLIDING = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=16, scale=0.25, window=20)


@pytest.mark.parametrize("spec", [TINY, TINY_SLIDING], ids=["full", "sliding"])
@pytest.mark.parametrize("widths", [[1, 1, 1], [1, 30, 3], [1, 3, 17]], ids=["decode", "copied", "mixture"])
def test_flashinfer_is_told_what_each_row_reads(plain_flashinfer, place, make_case, pad, spec, widths) -> None:
    case = make_case(spec, widths, [90, 0, 9])
    attention = make_flashinfer(place, case)
    attention.plan(case.layout)
    expected = attend(case.q, case.layout, spec, case.stored())
    place.assert_close(attention.run(case.q, case.k, case.v, spec, case.cache), expected)
    if max(widths) == 1:
        case.cache.values[0] = case.cache.keys[0] = 0.0  # the padding slot
        attention.plan_graph(pad(case.layout, 5, place))
        q, k, v = (torch.cat((new, new[:2])) for new in (case.q, case.k, case.v))
        out = attention.run(q, k, v, spec, case.cache)
        place.assert_close(out[:3], expected)
        assert out.isfinite().all()


STEPS = {
    "decode": ([1] * 16, list(range(5, 16 * 91, 91))),
    "verify": ([1, 2, 3, 6], [500, 90, 0, 1000]),
    "chunk": ([300], [700]),
    "mixture": ([1, 200, 1], [900, 0, 64]),
}


@pytest.mark.gpu
@pytest.mark.skipif(not has_flashinfer(), reason="FlashInfer is not installed")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("spec", [LLAMA, SMOLLM, SLIDING], ids=["llama", "smollm", "sliding"])
def test_flashinfer_attends_as_defined(place, make_case, tolerance, spec, step) -> None:
    case = make_case(spec, *STEPS[step], dtype=torch.bfloat16)
    for pool in (case.cache.keys, case.cache.values):
        pool.nan_to_num_(0.0)  # it multiplies what it masks
    attention = make_flashinfer(place, case)
    planners = [attention.plan, attention.plan_graph] if step == "decode" else [attention.plan]
    for plan in planners:
        plan(case.layout)
        out = attention.run(case.q, case.k, case.v, spec, case.cache)
        place.assert_close(out, attend(case.q, case.layout, spec, case.stored()), tolerance(torch.bfloat16))


def make_flashinfer(place, case):
    module = importlib.import_module("corymb.kernels.flashinfer_attention")
    return module.FlashInferAttention(
        [case.spec],
        max_keys=1 << 16,
        device=place.device,
        dtype=case.q.dtype,
        kv_dtype=case.cache.keys.dtype,
        launch=place.launch,
    )
