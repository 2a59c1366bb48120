"""Decode steps on a GPU against their floor, prefill rate and the GPU's busy share, on invented weights.

python benchmarks/gpu_decode.py --shapes llama-3.1-8b smollm2-135m --batches 1 64 --seconds 300 --results results.jsonl

The floor of a step is measured in the same run: the model's products alone, replayed as a graph, plus the bytes of keys
and values over the bandwidth of a copy. Every case is measured on its own: one that fails costs only itself.
"""

import argparse
import itertools
import statistics
import time
import traceback
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.nn.functional as F  # noqa: N812
from gpu_profile import Busy, busy_share
from gpu_shapes import SHAPES, Shape, shape_of, write_folder
from gpu_steps import decode_plans, prefill_plans, run_late
from record import record

from corymb.kernels.select import Wish
from corymb.models.build import Built, RunnerOptions, build
from corymb.models.cuda_options import CudaOptions

GPU = torch.device("cuda")
Result = TypeVar("Result")
WARM_STEPS, TIMED_STEPS = 24, 96
PREFILL = {"smollm2-135m": (16, 2048)}
DEFAULT_PREFILL = (16, 4000)


def main() -> None:
    """Runs every case until the time is over."""
    options = parse()
    deadline = time.monotonic() + options.seconds
    bandwidth = attempt("copy bandwidth", copy_bandwidth) or 4.14e12
    print(f"copy {bandwidth / 1e12:.2f} TB/s")
    for name in options.shapes:
        if time.monotonic() > deadline:
            print(f"out of time before {name}")
            break
        attempt(name, lambda name=name: measure_shape(name, options, bandwidth, deadline))  # type: ignore[misc]
        torch.cuda.empty_cache()


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 64, 128, 256])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--chunk", type=int, default=8192)
    parser.add_argument("--attention", choices=["auto", "triton", "flashinfer"], default="auto")
    parser.add_argument("--kv-cache-dtype", choices=["auto", "fp8_e4m3", "fp8_e5m2"], default="auto")
    parser.add_argument("--fused-rows", type=int, help="tokens of a step up to which products are ours")
    parser.add_argument("--prefill-graphs", type=int, default=0, help="tokens of a prefill up to which it is captured")
    parser.add_argument("--no-early-launch", action="store_true", help="without programmatic dependent launch")
    parser.add_argument("--skip", nargs="*", choices=["floor", "decode", "prefill", "profile"], default=[])
    parser.add_argument("--seconds", type=float, default=600.0, help="start no further case after so long")
    parser.add_argument("--results", default="gpu", help="name of the file under benchmarks/results")
    return parser.parse_args()


def attempt(name: str, work: Callable[[], Result]) -> Result | None:
    """Runs one case; a failure is printed and costs nothing else."""
    try:
        return work()
    except Exception:  # noqa: BLE001  # whatever goes wrong, the other cases must be measured
        print(f"FAILED {name}")
        traceback.print_exc()
        return None


def measure_shape(name: str, options: argparse.Namespace, bandwidth: float, deadline: float) -> None:
    """All figures of one shape."""
    shape = shape_of(name)
    begun = time.monotonic()
    built = build_runner(name, options)
    emit(options, "startup_s", time.monotonic() - begun, "s", shape=name, weights="dummy")
    fill_pools(built)
    for batch in options.batches:
        if time.monotonic() > deadline:
            print(f"out of time before {name} at {batch}")
            break
        attempt(f"{name} at {batch}", lambda batch=batch: measure_batch(name, shape, built, batch, options, bandwidth))
    if "prefill" not in options.skip:
        attempt(f"{name} prefill", lambda: measure_prefill(name, built, options))
    built.runner.close()


def build_runner(name: str, options: argparse.Namespace) -> Built:
    """The server's own runner on invented weights."""
    most = max(*options.batches, 16)
    needed = most * (options.context + WARM_STEPS + 2 * TIMED_STEPS + 64) + 1024
    asked = RunnerOptions(
        write_folder(name),
        device="cuda",
        load_format="dummy",
        max_running_requests=most,
        max_total_tokens=max(needed, 16 * 4096 + 64),
        kv_cache_dtype=options.kv_cache_dtype,
        cuda=CudaOptions(
            attention=Wish(both=options.attention),
            graph_max_tokens=most,
            max_step_tokens=options.chunk + most,
            prefill_graph_max_tokens=options.prefill_graphs,
            early_launch=not options.no_early_launch,
            **({} if options.fused_rows is None else {"fused_rows": options.fused_rows}),
        ),
    )

    def on_stage(stage: str, seconds: float | None, detail: str) -> None:
        if seconds is not None:
            print(f"  {stage}: {seconds:.1f} s ({detail})")

    return build(asked, on_stage)


def fill_pools(built: Built) -> None:
    """Random keys and values: a pool of zeros hides what is wrong, and may even run faster."""
    for layer in built.runner.parts.kv:  # type: ignore[attr-defined]
        for pool in (layer.keys, layer.values):
            for part in pool.split(1 << 16):
                part.copy_(torch.randn(part.shape, device=GPU, dtype=torch.bfloat16).mul_(0.3))


def measure_batch(
    name: str, shape: Shape, built: Built, batch: int, options: argparse.Namespace, bandwidth: float
) -> None:
    """Floor, step and, at some batches, the busy share."""
    context = options.context + WARM_STEPS + TIMED_STEPS / 2
    item = 1 if options.kv_cache_dtype != "auto" else 2
    kv_s = batch * context * shape.kv_bytes * item / 2 / bandwidth
    floor_s = None if "floor" in options.skip else products_s(shape, batch) + kv_s
    if floor_s is not None:
        emit(options, "step_floor_ms", floor_s * 1e3, "ms", shape=name, batch=batch)
    if "decode" in options.skip:
        return
    plans = decode_plans(batch, options.context)
    run_late(built.runner, plans, WARM_STEPS)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    device_s = run_late(built.runner, plans, TIMED_STEPS)
    step_s = (time.perf_counter() - begun) / TIMED_STEPS
    emit(options, "decode_step_ms", step_s * 1e3, "ms", shape=name, batch=batch)
    emit(options, "decode_device_ms", device_s / TIMED_STEPS * 1e3, "ms", shape=name, batch=batch)
    if floor_s is not None:
        emit(options, "decode_step_ratio", step_s / floor_s, "x", shape=name, batch=batch)
    if "profile" not in options.skip:
        busy = busy_share(lambda: run_late(built.runner, plans, 16))
        emit(options, "gpu_busy_share", busy.share, "", shape=name, batch=batch)
        show(busy)


def show(busy: Busy) -> None:
    """The kernels that take the longest, and where nothing runs."""
    for kernel in busy.kernels[:14]:
        print(f"    {kernel.share:6.1%} {kernel.mean_us:9.1f} µs × {kernel.count:5d}  {kernel.name[:90]}")
    for gap in busy.gaps[:8]:
        print(f"    idle {gap.share:6.2%} {gap.mean_us:7.2f} µs × {gap.count:5d}  {gap.before[:40]} → {gap.after[:40]}")


def measure_prefill(name: str, built: Built, options: argparse.Namespace) -> None:
    """Prompts of random tokens, in chunks."""
    num_prompts, num_tokens = PREFILL.get(name, DEFAULT_PREFILL)
    num_prompts = min(num_prompts, built.cache_config.num_rows - 1)
    run_late(built.runner, iter(prefill_plans(num_prompts, num_tokens, options.chunk)), 2)  # compiles
    rates = []
    for _ in range(2):
        plans = prefill_plans(num_prompts, num_tokens, options.chunk)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        run_late(built.runner, iter(plans), len(plans))
        rates.append(num_prompts * num_tokens / (time.perf_counter() - begun))
    emit(options, "prefill_tok_s", max(rates), "tok/s", shape=name, prompts=num_prompts, tokens=num_tokens)
    if "profile" not in options.skip:
        plans = prefill_plans(num_prompts, num_tokens, options.chunk)[:3]
        busy = busy_share(lambda: run_late(built.runner, iter(plans), len(plans)))
        emit(options, "gpu_busy_share", busy.share, "", shape=name, phase="prefill")
        show(busy)


def products_s(shape: Shape, batch: int) -> float:
    """Seconds of the model's products alone: random weights and inputs, replayed as one graph."""
    weights = [[random(*size) for size in shape.products] for _ in range(shape.num_layers)] + [[random(*shape.head)]]
    inputs = {size[1]: torch.randn((batch, size[1]), device=GPU, dtype=torch.bfloat16) for size in shape.products}

    def work() -> None:
        for layer in weights:
            for weight in layer:
                F.linear(inputs[weight.shape[1]], weight)

    return replay_s(work)


def replay_s(work: Callable[[], None], repeats: int = 20) -> float:
    """Median seconds of a captured graph's replay."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    for _ in range(3):
        graph.replay()
    for mark in marks:
        mark.record()
        graph.replay()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks)) / 1e3


def random(*size: int) -> torch.Tensor:
    """Random weights that keep the size of what flows through them."""
    return torch.empty(size, device=GPU, dtype=torch.bfloat16).uniform_(-1, 1).mul_(size[-1] ** -0.5)


def copy_bandwidth(repeats: int = 8) -> float:
    """Bytes read and written a second by copies of 4 GiB within the device, queued one after another; as the node of
    a graph a copy is a third slower."""
    source = torch.randint(0, 100, (1 << 30,), device=GPU, dtype=torch.int32)
    target = torch.empty_like(source)
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    for mark in marks:
        mark.record()
        target.copy_(source)
    torch.cuda.synchronize()
    return 2 * source.numel() * 4 * 1e3 / statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks))


def emit(options: argparse.Namespace, metric: str, value: float, unit: str, **params: str | float | int | None) -> None:
    """Prints and saves one figure."""
    params["attention"] = options.attention
    if options.kv_cache_dtype != "auto":
        params["kv_cache_dtype"] = options.kv_cache_dtype
    if options.fused_rows is not None:
        params["fused_rows"] = options.fused_rows
    if options.prefill_graphs:
        params["prefill_graphs"] = options.prefill_graphs
    if options.no_early_launch:
        params["early_launch"] = False
    record(options.results, metric, value, unit, **params)


if __name__ == "__main__":
    main()
