"""Attention to latents and the choice of keys in Triton against their definitions."""

import dataclasses

import numpy as np
import pytest
import torch

from corymb.kernels import reference_attention
from corymb.kernels.attention import AttentionSpec, IndexSpec, KVLayer
from corymb.kernels.triton_latent_attention import TritonLatents, choose_latent_tile

TINY = AttentionSpec(num_heads=5, num_kv_heads=1, head_dim=28, scale=0.2, latent_dim=20, index=IndexSpec(3, 12, 24))
REAL = AttentionSpec(128, 1, 576, 192**-0.5, latent_dim=512, index=IndexSpec(64, 128, 2048))
GLM = AttentionSpec(64, 1, 576, 0.0625, latent_dim=512, index=IndexSpec(32, 128, 2048))
TINY_STEPS = {"decode": ([1, 1, 1], [70, 0, 9]), "chunk": ([20], [40]), "mixture": ([1, 11, 1, 3], [60, 7, 0, 30])}
REAL_STEPS = {
    "decode": ([1] * 48, list(range(3, 48 * 61, 61))),
    "long decode": ([1, 1], [9000, 40]),
    "mixture": ([1, 60, 1, 3], [4000, 2500, 31, 900]),
}


@dataclasses.dataclass
class Step:
    """One layer's inputs over one ragged step, in pools that are NaN where nothing belongs."""

    spec: AttentionSpec
    layout: object
    q: torch.Tensor
    latents: torch.Tensor
    index: tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # queries, weights, keys
    cache: KVLayer

    def stored(self) -> KVLayer:
        """The pools in float32 with the new tokens in them."""
        keys, index_keys = self.cache.keys.float(), self.cache.index_keys.float()
        keys[self.layout.slots, 0] = self.latents.float()
        index_keys[self.layout.slots] = self.index[2].float()
        return KVLayer(keys, keys[..., : self.spec.latent_dim], index_keys=index_keys)


@pytest.fixture
def make_step(place, lay_out):
    def make(spec, widths, starts, *, dtype=torch.float32) -> Step:
        layout = lay_out(widths, starts)
        num_tokens, pool_size = layout.num_tokens, int(layout.table.max()) + 2

        def pool(*shape):
            numbers = place.normal(pool_size, *shape, dtype=dtype)
            used = torch.zeros(pool_size, dtype=torch.bool, device=numbers.device)
            for row, start in zip(layout.host_rows.tolist(), layout.host_starts.tolist(), strict=True):
                used[layout.table[row, :start].long()] = True
            numbers[~used] = float("nan")
            return numbers

        keys = pool(1, spec.head_dim)
        index = (
            place.normal(num_tokens, spec.index.num_heads, spec.index.head_dim, dtype=dtype),
            place.normal(num_tokens, spec.index.num_heads),
            place.normal(num_tokens, spec.index.head_dim, dtype=dtype),
        )
        return Step(
            spec,
            layout,
            place.normal(num_tokens, spec.num_heads, spec.head_dim, dtype=dtype),
            place.normal(num_tokens, spec.head_dim, dtype=dtype),
            index,
            KVLayer(keys, keys[..., : spec.latent_dim], index_keys=pool(spec.index.head_dim)),
        )

    return make


def make(place, step, *, captured=False, deterministic=False) -> TritonLatents:
    latents = TritonLatents(len(step.q) + 3, device=place.device, launch=place.launch, deterministic=deterministic)
    longest = int((step.layout.host_starts + step.layout.host_widths).max())
    latents.plan(step.layout, most_keys=step.layout.table.shape[1] if captured else longest)
    return latents


def check_dense(place, step, tolerance, **options) -> None:
    out = make(place, step, **options).run_latent(step.q, step.latents, step.spec, step.cache, None)
    expected = reference_attention.attend(step.q, step.layout, step.spec, step.stored())
    place.assert_close(out, expected, tolerance)
    assert torch.equal(step.cache.keys[step.layout.slots, 0], step.latents)


def positions_of(step, chosen) -> list[list[int]]:
    """Where the chosen keys stand in their rows."""
    rows = np.repeat(step.layout.host_rows, step.layout.host_widths).tolist()
    table, slots, counts = step.layout.table.tolist(), chosen.slots.tolist(), chosen.counts.tolist()
    places = [{slot: position for position, slot in enumerate(table[row])} for row in rows]
    return [[of[slot] for slot in some[:count]] for of, some, count in zip(places, slots, counts, strict=True)]


@pytest.mark.parametrize("name", TINY_STEPS)
@pytest.mark.parametrize("deterministic", [False, True])
def test_every_token_attends_to_all_latents(place, make_step, tolerance, name, deterministic) -> None:
    step = make_step(TINY, *TINY_STEPS[name])
    check_dense(place, step, tolerance(torch.float32), deterministic=deterministic)


def test_16_bits(place, make_step, tolerance) -> None:
    check_dense(place, make_step(TINY, *TINY_STEPS["mixture"], dtype=torch.bfloat16), tolerance(torch.bfloat16))


@pytest.mark.parametrize("name", TINY_STEPS)
@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_every_token_attends_to_what_its_index_chose(place, make_step, tolerance, name, captured) -> None:
    step = make_step(TINY, *TINY_STEPS[name])
    latents = make(place, step, captured=captured)
    chosen = latents.choose(*step.index, step.spec, step.cache)
    stored = step.stored()
    expected = reference_attention.choose(*step.index[:2], step.layout, stored.index_keys, step.spec.index.top_k)
    assert positions_of(step, chosen) == expected
    out = latents.run_latent(step.q, step.latents, step.spec, step.cache, chosen)
    attended = reference_attention.attend(step.q, step.layout, step.spec, stored, expected)
    place.assert_close(out, attended, tolerance(torch.float32))


@pytest.mark.parametrize("values", [(0.0,), (-1.0, 0.0, 2.0), (5.0, 5.0, -5.0)], ids=str)
def test_the_earlier_of_equal_keys_is_chosen_whatever_their_score(place, make_step, values) -> None:
    spec = dataclasses.replace(TINY, index=IndexSpec(1, 1, 24))
    step = make_step(spec, *TINY_STEPS["mixture"])
    numbers = place.put(np.array(values, np.float32))
    few = [numbers[torch.randint(len(values), one.shape, generator=place.generator)] for one in step.index[::2]]
    step.index = (few[0], step.index[1].sign(), few[1])
    used = step.cache.index_keys.isfinite()
    pool = numbers[torch.randint(len(values), used.shape, generator=place.generator)]
    step.cache.index_keys.copy_(torch.where(used, pool, float("nan")))
    chosen = make(place, step).choose(*step.index, spec, step.cache)
    expected = reference_attention.choose(*step.index[:2], step.layout, step.stored().index_keys, 24)
    assert positions_of(step, chosen) == expected


def test_scores_are_made_in_passes_where_a_buffer_is_too_small(place, make_step, monkeypatch) -> None:
    monkeypatch.setattr("corymb.kernels.triton_latent_attention.SCORE_BYTES", 4 * 60 * 7)
    step = make_step(TINY, *TINY_STEPS["chunk"])
    chosen = make(place, step).choose(*step.index, step.spec, step.cache)
    expected = reference_attention.choose(*step.index[:2], step.layout, step.stored().index_keys, 24)
    assert positions_of(step, chosen) == expected


def test_a_token_keeps_its_bits_in_any_company(place, make_step) -> None:
    step = make_step(TINY, *TINY_STEPS["decode"])
    latents = make(place, step, deterministic=True)
    together = latents.run_latent(step.q, step.latents, step.spec, step.cache, None)
    layout = step.layout
    alone = dataclasses.replace(
        layout,
        rows=layout.rows[:1],
        widths=layout.widths[:1],
        starts=layout.starts[:1],
        offsets=layout.offsets[:2],
        positions=layout.positions[:1],
        slots=layout.slots[:1],
        host_rows=layout.host_rows[:1],
        host_widths=layout.host_widths[:1],
        host_starts=layout.host_starts[:1],
    )
    latents.plan(alone, most_keys=80)
    assert torch.equal(latents.run_latent(step.q[:1], step.latents[:1], step.spec, step.cache, None), together[:1])


def test_few_tokens_are_split_and_many_are_not() -> None:
    def splits(num_tokens, **options):
        return choose_latent_tile(REAL, num_tokens, item_bytes=2, num_sms=132, **options).splits

    assert [splits(count) for count in (1, 16, 66, 132, 8192)] == [32, 8, 2, 1, 1]
    assert splits(1, whole=True) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("spec", [REAL, GLM], ids=["deepseek", "glm"])
@pytest.mark.parametrize("name", REAL_STEPS)
def test_real_shapes(place, make_step, tolerance, spec, name) -> None:
    step = make_step(spec, *REAL_STEPS[name], dtype=torch.bfloat16)
    check_dense(place, step, tolerance(torch.bfloat16))
    latents = make(place, step)
    chosen = latents.choose(*step.index, spec, step.cache)
    positions = positions_of(step, chosen)
    ends = np.concatenate([np.arange(s, s + w) for w, s in zip(*REAL_STEPS[name], strict=True)])
    assert [len(some) for some in positions] == np.minimum(ends + 1, spec.index.top_k).tolist()
    assert all(some == sorted(set(some)) for some in positions)
    # In 16 bits, keys at the cut may change places: what is attended to is checked, not which keys they are.
    out = latents.run_latent(step.q, step.latents, spec, step.cache, chosen)
    attended = reference_attention.attend(step.q, step.layout, spec, step.stored(), positions)
    place.assert_close(out, attended, tolerance(torch.bfloat16))
