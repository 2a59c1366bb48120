"""Routed experts and attention to latents on a GPU: ours against FlashInfer's, where it is installed and can.

python benchmarks/gpu_experts.py --seconds 200 --results gpu
python benchmarks/gpu_experts.py --cases latents --latents deepseek-v3 --tokens 64

Every case is captured in a graph and replayed, checked for agreement, and measured on its own: one that fails costs
only itself. Experts' times are those of a whole layer, routing included for ours; FlashInfer is given the choice.
"""

import argparse
import importlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from gpu_decode import GPU, attempt, random, replay_s
from record import record
from torch import Tensor

from corymb.kernels.attention import AttentionSpec, Chosen, IndexSpec, KVLayer, RaggedLayout
from corymb.kernels.routing import SWIGLU, Routing
from corymb.kernels.select import has_flashinfer
from corymb.kernels.torch_experts import route
from corymb.kernels.triton_experts import Stacked, mix
from corymb.kernels.triton_jit import Launch
from corymb.kernels.triton_latent_attention import TritonLatents

BF16 = torch.bfloat16
LAUNCH = Launch(interpreted=False, early=True, num_sms=132)
CASES = ("experts", "latents", "index")
Work = Callable[[], Tensor]
Measure = Callable[..., None]
WORKSPACE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Layer:
    """The experts of one layer, as one GPU holds them."""

    routing: Routing
    hidden: int
    inner: int


DEEPSEEK = Routing(256, 8, scores="sigmoid", num_groups=8, top_groups=4, scale=2.5)
EXPERTS = {
    "mixtral-8x7b": Layer(Routing(8, 2), 4096, 14336),
    "qwen3-30b-a3b": Layer(Routing(128, 8), 2048, 768),
    "gpt-oss-20b": Layer(Routing(32, 4), 2880, 2880),
    "deepseek-v3, 1 of 8": Layer(DEEPSEEK, 7168, 256),
}
LATENTS = {
    "deepseek-v3": AttentionSpec(128, 1, 576, 192**-0.5, latent_dim=512, index=IndexSpec(64, 128, 2048)),
    "deepseek-v3, 1 of 8": AttentionSpec(16, 1, 576, 192**-0.5, latent_dim=512, index=IndexSpec(64, 128, 2048)),
}


def main() -> None:
    """Every case that was asked for, until the time is over."""
    options = parse()
    deadline = time.monotonic() + options.seconds
    for name, work in cases(options):
        if time.monotonic() < deadline:
            attempt(name, work)
            torch.cuda.empty_cache()


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--experts", nargs="+", choices=list(EXPERTS), default=list(EXPERTS))
    parser.add_argument("--latents", nargs="+", choices=list(LATENTS), default=list(LATENTS))
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 64, 256, 2048])
    parser.add_argument("--contexts", type=int, nargs="+", default=[1024, 8192])
    parser.add_argument("--results", default="gpu")
    return parser.parse_args()


def cases(options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], None]]]:
    """What there is to measure: all of ours, then FlashInfer's, which may have to compile for minutes, experts last."""
    ours: dict[str, Measure] = {"experts": experts, "latents": latents, "index": index}
    theirs: dict[str, Measure] = {"latents": latents_against, "experts": experts_against}
    decodes = [count for count in options.tokens if count <= 256]
    rows = list(itertools.product(options.latents, decodes, options.contexts))
    for what, work in [*ours.items(), *(theirs.items() if has_flashinfer() else ())]:
        if what not in options.cases:
            continue
        for shape in itertools.product(options.experts, options.tokens) if what == "experts" else rows:
            yield f"{work.__name__} {shape}", lambda w=work, s=shape: w(*s, options.results)


def experts(name: str, num_tokens: int, results: str) -> None:
    """One layer's experts."""
    layer, (ours, _) = EXPERTS[name], both_experts(name, num_tokens)
    taken = replay_s(ours)
    used = min(layer.routing.num_experts, num_tokens * layer.routing.top_k)
    floor = used * 3 * layer.inner * layer.hidden * 2 / 4.2e12  # reading those weights once
    record(results, "experts_us", taken * 1e6, "us", by="triton", layer=name, tokens=num_tokens)
    record(results, "experts_floor_us", floor * 1e6, "us", layer=name, tokens=num_tokens)


def experts_against(name: str, num_tokens: int, results: str) -> None:
    """The same by FlashInfer."""
    ours, theirs = both_experts(name, num_tokens)
    against("experts", results, ours, theirs(), layer=name, tokens=num_tokens)


def both_experts(name: str, num_tokens: int) -> tuple[Work, Callable[[], Work]]:
    """One layer's experts by us, and what makes those of FlashInfer."""
    layer = EXPERTS[name]
    routing, hidden, inner = layer.routing, layer.hidden, layer.inner
    stacked = Stacked(random(routing.num_experts, 2 * inner, hidden), random(routing.num_experts, hidden, inner))
    x = torch.randn((num_tokens, hidden), device=GPU, dtype=BF16)
    logits = torch.randn((num_tokens, routing.num_experts), device=GPU)

    def ours() -> Tensor:
        return mix(x, logits, routing, SWIGLU, None, stacked, launch=LAUNCH)

    return ours, lambda: flashinfer_experts(x, logits, routing, stacked)


def flashinfer_experts(x: Tensor, logits: Tensor, routing: Routing, stacked: Stacked) -> Callable[[], Tensor]:
    """FlashInfer's CUTLASS kernels, for experts that are chosen already."""
    module = importlib.import_module("flashinfer.fused_moe")
    routed = route(logits, routing)
    ids, weights = routed.ids.int(), routed.weights
    gate, up = stacked.gate_up.chunk(2, dim=1)
    up_gate = torch.cat((up, gate), dim=1)  # its order

    def theirs() -> Tensor:
        out = module.cutlass_fused_moe(x, ids, weights, up_gate, stacked.down, BF16, quant_scales=None)
        return out[0] if isinstance(out, list | tuple) else out

    return theirs


def latents(name: str, num_rows: int, context: int, results: str) -> None:
    """A decode step's attention to latents, every row with the same context."""
    shown: dict[str, str | int] = {"shape": name, "rows": num_rows, "context": context}
    ours, _ = both_latents(name, num_rows, context)
    record(results, "latents_us", replay_s(ours) * 1e6, "us", by="triton", **shown)
    floor = num_rows * context * LATENTS[name].head_dim * 2 / 4.2e12
    record(results, "latents_floor_us", floor * 1e6, "us", **shown)


def latents_against(name: str, num_rows: int, context: int, results: str) -> None:
    """The same by FlashInfer."""
    ours, theirs = both_latents(name, num_rows, context)
    against("latents", results, ours, theirs(), shape=name, rows=num_rows, context=context)


def both_latents(name: str, num_rows: int, context: int) -> tuple[Work, Callable[[], Work]]:
    """That attention by us, and what makes FlashInfer's."""
    spec = LATENTS[name]
    layout, cache = rows_of(num_rows, context, spec)
    attention = TritonLatents(num_rows, device=GPU, launch=LAUNCH)
    attention.plan(layout, most_keys=context)
    q = torch.randn((num_rows, spec.num_heads, spec.head_dim), device=GPU, dtype=BF16)
    new = torch.randn((num_rows, spec.head_dim), device=GPU, dtype=BF16)

    def ours() -> Tensor:
        return attention.run_latent(q, new, spec, cache, None)

    return ours, lambda: flashinfer_latents(q, layout, spec, cache, context)


def flashinfer_latents(
    q: Tensor, layout: RaggedLayout, spec: AttentionSpec, cache: KVLayer, context: int
) -> Callable[[], Tensor]:
    """FlashInfer's wrapper, planned once."""
    module = importlib.import_module("flashinfer.mla")
    wrapper = module.BatchMLAPagedAttentionWrapper(torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=GPU))
    num_rows, latent_dim = len(q), spec.value_dim
    ones = torch.arange(num_rows + 1, dtype=torch.int32, device=GPU)
    slots = layout.table[layout.rows.long(), :context].reshape(-1).int()
    lengths = torch.full((num_rows,), context, dtype=torch.int32, device=GPU)
    wrapper.plan(
        ones, ones * context, slots, lengths, spec.num_heads, latent_dim, spec.head_dim - latent_dim, 1, False,
        spec.scale, BF16, BF16,
    )  # fmt: skip
    latent, rope = (part.contiguous() for part in cache.keys.split([latent_dim, spec.head_dim - latent_dim], dim=-1))
    q_latent, q_rope = (part.contiguous() for part in q.split([latent_dim, spec.head_dim - latent_dim], dim=-1))
    return lambda: wrapper.run(q_latent, q_rope, latent, rope)


def index(name: str, num_rows: int, context: int, results: str) -> None:
    """A decode step's choice of keys, and its attention to those."""
    spec = LATENTS[name]
    assert spec.index is not None
    layout, cache = rows_of(num_rows, context, spec)
    attention = TritonLatents(num_rows, device=GPU, launch=LAUNCH)
    attention.plan(layout, most_keys=context)
    heads, dim = spec.index.num_heads, spec.index.head_dim
    q = torch.randn((num_rows, heads, dim), device=GPU, dtype=BF16)
    weights = torch.randn((num_rows, heads), device=GPU)
    keys = torch.randn((num_rows, dim), device=GPU, dtype=BF16)

    def choose() -> Chosen:
        return attention.choose(q, weights, keys, spec, cache)

    taken = replay_s(choose)
    record(results, "index_us", taken * 1e6, "us", shape=name, rows=num_rows, context=context)
    chosen = choose()
    queries = torch.randn((num_rows, spec.num_heads, spec.head_dim), device=GPU, dtype=BF16)
    new = torch.randn((num_rows, spec.head_dim), device=GPU, dtype=BF16)
    taken = replay_s(lambda: attention.run_latent(queries, new, spec, cache, chosen))
    record(results, "sparse_us", taken * 1e6, "us", shape=name, rows=num_rows, context=context)


def against(
    what: str, results: str, ours: Callable[[], Tensor], theirs: Callable[[], Tensor], **shown: str | int
) -> None:
    """FlashInfer's time, and how far its result is from ours."""
    first, second = ours().double(), theirs().double()
    error = float((first - second).norm() / second.norm())
    record(results, f"{what}_us", replay_s(theirs) * 1e6, "us", by="flashinfer", **shown)
    print(f"relative difference {error:.1e}", flush=True)
    if error > 0.02:
        raise ValueError(f"ours and FlashInfer's differ by {error:.1e}")


def rows_of(num_rows: int, context: int, spec: AttentionSpec) -> tuple[RaggedLayout, KVLayer]:
    """Rows of one new token behind context - 1 others, at scattered slots."""
    num_slots = num_rows * context + 1
    table = torch.zeros((num_rows + 1, context), dtype=torch.int32, device=GPU)
    table[1:] = (torch.randperm(num_slots - 1, device=GPU).int() + 1).view(num_rows, context)
    ones, starts = np.ones(num_rows, np.int32), np.full(num_rows, context - 1, np.int32)
    rows = torch.arange(1, num_rows + 1, dtype=torch.int32, device=GPU)
    layout = RaggedLayout(
        rows=rows,
        widths=torch.ones_like(rows),
        starts=torch.full_like(rows, context - 1),
        offsets=torch.arange(num_rows + 1, dtype=torch.int32, device=GPU),
        positions=torch.full((num_rows,), context - 1, dtype=torch.int64, device=GPU),
        slots=table[1:, -1].long(),
        sliding_slots=None,
        table=table,
        full_to_sliding=None,
        host_rows=np.arange(1, num_rows + 1, dtype=np.int32),
        host_widths=ones,
        host_starts=starts,
    )
    keys = torch.randn((num_slots, 1, spec.head_dim), device=GPU, dtype=BF16)
    dim = spec.index.head_dim if spec.index else 1
    index_keys = torch.randn((num_slots, dim), device=GPU, dtype=BF16)
    return layout, KVLayer(keys, keys[..., : spec.value_dim], index_keys=index_keys)


if __name__ == "__main__":
    main()
