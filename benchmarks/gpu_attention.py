"""Attention alone on a GPU: every variant of our decode kernel, and FlashInfer beside it.

python benchmarks/gpu_attention.py --seconds 200

Layers take turns, each with its own pool, so that nothing is read from a cache. Prints microseconds a layer and the
share of a copy's bandwidth; the best variants belong in kernels/triton_tiling.py.
"""

import argparse
import importlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from gpu_decode import attempt, copy_bandwidth, replay_s
from record import record

from corymb.kernels.attention import AttentionSpec, GraphAttention, KVLayer, RaggedLayout
from corymb.kernels.select import has_flashinfer
from corymb.kernels.triton_attention import Limits, TritonAttention
from corymb.kernels.triton_jit import Launch
from corymb.kernels.triton_tiling import Tiling, choose_tiling, choose_variant

GPU = torch.device("cuda")
SPECS = {
    "llama-3.1-8b": AttentionSpec(num_heads=32, num_kv_heads=8, head_dim=128, scale=128**-0.5),
    "smollm2-135m": AttentionSpec(num_heads=9, num_kv_heads=3, head_dim=64, scale=0.125),
}
DECODES = [("llama-3.1-8b", 1), ("llama-3.1-8b", 8), ("llama-3.1-8b", 64), ("llama-3.1-8b", 256), ("smollm2-135m", 256)]
CONTEXT = 1088
POOL_BYTES = 1 << 30  # all layers together: many times the caches


@dataclass(frozen=True)
class Step:
    """One step's inputs over several layers."""

    spec: AttentionSpec
    layout: RaggedLayout
    q: torch.Tensor
    pools: list[KVLayer]

    def seconds(self, attention: GraphAttention, *, captured: bool) -> float:
        """Seconds a layer."""
        (attention.plan_graph if captured else attention.plan)(self.layout)
        if captured:
            attention.plan_captured()
        torch.cuda.synchronize()  # no kernel stands between a plan and the first layer here
        new = torch.zeros((len(self.q), self.spec.num_kv_heads, self.spec.head_dim), device=GPU, dtype=self.q.dtype)

        def work() -> None:
            for pool in self.pools:
                if isinstance(attention, TritonAttention):
                    attention.attend(self.q, self.spec, pool)
                else:
                    attention.run(self.q, new, new, self.spec, pool)

        return replay_s(work) / len(self.pools)


def main() -> None:
    """Sweeps decode variants, then compares back ends for decode, verification and prefill."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument(
        "--parts", nargs="+", choices=["compare", "decode", "wide"], default=["compare", "decode", "wide"]
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--results", default="gpu")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    for name, widths, starts in comparisons() if "compare" in options.parts else ():
        if time.monotonic() < deadline:
            attempt(name, lambda n=name, w=widths, s=starts: compare(n, w, s, options))
    if "decode" in options.parts:
        bandwidth = copy_bandwidth()
        for name, batch in DECODES:
            if batch in options.batches:
                attempt(f"{name} at {batch}", lambda n=name, b=batch: sweep(n, b, bandwidth, deadline, options))
    if "wide" in options.parts:
        attempt("wide", lambda: sweep_wide(deadline))


def sweep(name: str, batch: int, bandwidth: float, deadline: float, options: argparse.Namespace) -> None:
    """Every decode variant for one batch, best first."""
    spec = SPECS[name]
    step = make_step(spec, [1] * batch, [CONTEXT - 1] * batch)
    needed = batch * CONTEXT * 2 * spec.num_kv_heads * spec.head_dim * 2 / bandwidth
    chosen = choose_tiling(spec, kv_bytes=2, variant=choose_variant(spec, num_rows=batch, most_tokens=1))
    times: list[tuple[float, Tiling]] = []
    for tiling in itertools.chain([chosen], variants(spec)):
        if time.monotonic() > deadline:
            print("out of time")
            break
        seconds = attempt(str(tiling), lambda t=tiling: step.seconds(triton(step, t), captured=True))
        if seconds is not None:
            times.append((seconds, tiling))
    print(f"{name} batch {batch}: bytes alone {needed * 1e6:.1f} µs; ours now {times[0][0] * 1e6:.1f} µs")
    for seconds, tiling in sorted(times, key=lambda one: one[0])[:8]:
        print(f"  {seconds * 1e6:8.1f} µs {needed / seconds:6.1%}  {tiling}", flush=True)
    best = min(times, key=lambda one: one[0])
    record(options.results, "attention_decode_us", best[0] * 1e6, "us", shape=name, batch=batch, tiling=str(best[1]))


def sweep_wide(deadline: float) -> None:
    """Variants for long rows."""
    spec = SPECS["llama-3.1-8b"]
    step = make_step(spec, [4000] * 2, [0] * 2)
    products = 2 * 4 * spec.num_heads * spec.head_dim * 4000 * 4001 / 2
    wide = [(128, 64, 8, 3, 1), (128, 128, 8, 3, 1), (128, 64, 4, 3, 1), (128, 64, 8, 5, 1), (64, 64, 4, 3, 2)]
    for sizes in [*wide, (128, 128, 8, 5, 1), (128, 32, 8, 5, 1), (64, 128, 4, 3, 2)]:
        if time.monotonic() < deadline:
            tiling = Tiling(*sizes)
            seconds = attempt(str(tiling), lambda t=tiling: step.seconds(triton(step, t), captured=False))
            if seconds is not None:
                print(f"  {seconds * 1e6:8.1f} µs {products / seconds / 1e12:.0f} TFLOP/s {tiling}", flush=True)


def variants(spec: AttentionSpec) -> Iterator[Tiling]:
    """What may be faster."""
    rows = choose_tiling(spec, kv_bytes=2, variant="narrow").block_m
    for block_n, stages, warps, programs in itertools.product((32, 64, 128), (3, 5, 7), (4, 8), (1, 2, 3)):
        stage_bytes = 2 * block_n * spec.head_dim * 2
        buffers = (stages - 1) // 2
        if 16384 <= programs * buffers * stage_bytes <= 200_000 and not (warps == 8 and block_n < 128):
            for min_share in (64, 128, 256):
                yield Tiling(rows, block_n, warps, stages, programs, min_share)


def triton(step: Step, tiling: Tiling | None = None) -> TritonAttention:
    """Our back end, with one variant."""
    sms = torch.cuda.get_device_properties(GPU).multi_processor_count
    choose = choose_tiling if tiling is None else lambda *_, **__: tiling
    limits = Limits(max_rows=max(512, step.layout.num_rows), max_tokens=max(512, step.layout.num_tokens))
    launch = Launch(interpreted=False, early=True, num_sms=sms)
    return TritonAttention([step.spec], limits, device=GPU, kv_dtype=torch.bfloat16, launch=launch, choose=choose)


def comparisons() -> Iterator[tuple[str, list[int], list[int]]]:
    """Steps for both back ends."""
    yield "decode 64", [1] * 64, [CONTEXT - 1] * 64
    yield "decode 256", [1] * 256, [CONTEXT - 1] * 256
    yield "verify 64 x 6", [6] * 64, [CONTEXT - 6] * 64
    yield "prefill 2 x 4000", [4000] * 2, [0] * 2
    yield "chunk 2048 behind 6000", [2048], [6000]
    yield "mixture", [1] * 64 + [2048], [CONTEXT - 1] * 64 + [0]


def compare(name: str, widths: list[int], starts: list[int], options: argparse.Namespace) -> None:
    """One step with each back end, Llama's heads."""
    spec = SPECS["llama-3.1-8b"]
    step = make_step(spec, widths, starts)
    made = {"triton": triton(step)}
    if has_flashinfer():
        back_end = importlib.import_module("corymb.kernels.flashinfer_attention").FlashInferAttention
        launch = Launch(interpreted=False, early=True, num_sms=132)
        keys = 2 * int(step.layout.host_starts.sum() + step.layout.num_tokens)
        types = {"device": GPU, "dtype": torch.bfloat16, "kv_dtype": torch.bfloat16}
        made["flashinfer"] = back_end([spec], max_keys=keys, launch=launch, **types)
    products = (
        4 * spec.num_heads * spec.head_dim * sum(w * s + w * (w + 1) / 2 for w, s in zip(widths, starts, strict=True))
    )
    for back_end, attention in made.items():
        for captured in {max(widths) == 1, back_end == "triton" and max(widths) <= 8}:  # captured: narrow tiles
            seconds = attempt(f"{name} {back_end}", lambda a=attention, c=captured: step.seconds(a, captured=c))
            if seconds is not None:
                print(f"{name} {back_end}: {seconds * 1e6:.1f} µs, {products / seconds / 1e12:.0f} TFLOP/s", flush=True)
                params = {"step": name, "back_end": back_end, "captured": captured}
                record(options.results, "attention_us", seconds * 1e6, "us", **params)


def make_step(spec: AttentionSpec, widths: list[int], starts: list[int]) -> Step:
    """Rows with their keys one after another in the pool, random."""
    host_widths, host_starts = np.array(widths, np.int32), np.array(starts, np.int32)
    lengths = host_starts + host_widths
    bounds = np.concatenate(([0], np.cumsum(lengths)))
    table = np.zeros((len(widths) + 1, lengths.max()), np.int32)
    for row, (low, length) in enumerate(zip(bounds, lengths, strict=False)):
        table[row + 1, :length] = np.arange(low + 1, low + 1 + length)
    rows = np.arange(1, len(widths) + 1, dtype=np.int32)
    positions = np.concatenate([np.arange(s, s + w) for s, w in zip(starts, widths, strict=True)])
    slots = table[np.repeat(rows, host_widths), positions].astype(np.int64)
    put = lambda array: torch.from_numpy(array).to(GPU)  # noqa: E731
    layout = RaggedLayout(
        rows=put(rows),
        widths=put(host_widths),
        starts=put(host_starts),
        offsets=put(np.concatenate(([0], np.cumsum(host_widths))).astype(np.int32)),
        positions=put(positions.astype(np.int64)),
        slots=put(slots),
        sliding_slots=None,
        table=put(table),
        full_to_sliding=None,
        host_rows=rows,
        host_widths=host_widths,
        host_starts=host_starts,
    )
    size = (int(bounds[-1]) + 8, spec.num_kv_heads, spec.head_dim)
    count = max(2, min(32, POOL_BYTES // (size[0] * size[1] * size[2] * 4)))
    normal = lambda *shape: torch.randn(shape, device=GPU, dtype=torch.bfloat16)  # noqa: E731
    pools = [KVLayer(normal(*size), normal(*size)) for _ in range(count)]
    return Step(spec, layout, normal(layout.num_tokens, spec.num_heads, spec.head_dim), pools)


if __name__ == "__main__":
    main()
