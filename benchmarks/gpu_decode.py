"""Decode steps on a GPU against their floor, prefill rate and the GPU's busy share, on invented weights.

python benchmarks/gpu_decode.py --shapes llama-3.1-8b smollm2-135m --batches 1 64 --seconds 300
python benchmarks/gpu_decode.py --shapes qwen3-8b --variants base ahead-8 ahead-8+adds --skip prefill profile

The floor of a step is measured in the same run: the model's products alone, replayed as a graph, plus the bytes of keys
and values over the bandwidth of a copy. Every case is measured on its own: one that fails costs only itself. A variant
is what the runner is asked to do otherwise (names joined by +): late, fused-ROWS, ahead-MIB, adds; see CudaOptions.
"""

import argparse
import itertools
import statistics
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
import torch.nn.functional as F  # noqa: N812
from gpu_profile import busy_share, show
from gpu_shapes import SHAPES, Shape, shape_of, write_folder
from gpu_steps import decode_plans, prefill_plans, run_late
from record import record

from corymb.kernels.select import Wish
from corymb.models.build import Built, RunnerOptions, build
from corymb.models.cuda_options import CudaOptions

GPU = torch.device("cuda")
Result = TypeVar("Result")
WARM_STEPS, TIMED_STEPS = 24, 96
TOKENS_SINCE = WARM_STEPS + TIMED_STEPS / 2  # tokens that rows have more than before, on average while timed
USUAL_CONTEXT = 1024
PREFILL = {"smollm2-135m": (16, 2048)}
DEFAULT_PREFILL = (16, 4000)


def main() -> None:
    """Runs every case until the time is over."""
    options = parse()
    deadline = time.monotonic() + options.seconds
    bandwidth = attempt("copy bandwidth", copy_bandwidth) or 4.14e12
    print(f"copy {bandwidth / 1e12:.2f} TB/s")
    floors = Floors(bandwidth)
    for name, variant in itertools.product(options.shapes, options.variants):
        if time.monotonic() > deadline:
            print(f"out of time before {name}, {variant}")
            break
        case = Case(name, variant, options, floors)
        attempt(f"{name}, {variant}", lambda case=case: case.measure(deadline))  # type: ignore[misc]
        torch.cuda.empty_cache()


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--variants", type=checked, nargs="+", default=["base"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 64, 128, 256])
    parser.add_argument(
        "--context", type=int, default=USUAL_CONTEXT, help="tokens that rows have before the first step"
    )
    parser.add_argument("--chunk", type=int, default=8192)
    parser.add_argument("--prompts", type=int, nargs=2, metavar=("COUNT", "TOKENS"), help="of the prefill")
    parser.add_argument("--attention", choices=["auto", "triton", "flashinfer"], default="auto")
    parser.add_argument("--kv-cache-dtype", choices=["auto", "fp8_e4m3", "fp8_e5m2"], default="auto")
    parser.add_argument("--prefill-graphs", type=int, default=0, help="tokens of a prefill up to which it is captured")
    parser.add_argument("--skip", nargs="*", choices=["floor", "decode", "prefill", "profile"], default=[])
    parser.add_argument("--trace", type=Path, help="folder for the profiler's traces")
    parser.add_argument("--seconds", type=float, default=600.0, help="start no further case after so long")
    parser.add_argument("--results", default="gpu", help="name of the file under benchmarks/results")
    return parser.parse_args()


def checked(variant: str) -> str:
    """A variant that exists."""
    changes(variant)
    return variant


def changes(variant: str) -> dict[str, int | bool]:
    """What a variant asks of the runner."""
    found: dict[str, int | bool] = {}
    for part in variant.split("+"):
        kind, _, number = part.partition("-")
        if kind == "late":
            found["early_launch"] = False  # without programmatic dependent launch
        elif kind == "fused":
            found["fused_rows"] = int(number)
        elif kind == "ahead":
            found["ahead_bytes"] = int(number) << 20
        elif kind == "adds":
            found["library_adds"] = True
        elif kind != "base":
            raise ValueError(variant)
    return found


class Floors:
    """Seconds that a step of a shape takes at least: measured once."""

    def __init__(self, bandwidth: float) -> None:
        self._bandwidth = bandwidth
        self._products: dict[tuple[str, int], float] = {}

    def seconds(self, name: str, batch: int, context: float, item_bytes: int) -> float:
        """Of a batch whose rows have `context` tokens on average."""
        shape = shape_of(name)
        if (name, batch) not in self._products:
            self._products[name, batch] = products_s(shape, batch)
        keys_s = batch * context * shape.kv_bytes * item_bytes / 2 / self._bandwidth
        return self._products[name, batch] + keys_s


def attempt(name: str, work: Callable[[], Result]) -> Result | None:
    """Runs one case; a failure is printed and costs nothing else."""
    try:
        return work()
    except Exception:  # noqa: BLE001  # whatever goes wrong, the other cases must be measured
        print(f"FAILED {name}")
        traceback.print_exc()
        return None


@dataclass(frozen=True, slots=True)
class Case:
    """One shape with one variant of the runner."""

    name: str
    variant: str
    options: argparse.Namespace
    floors: Floors

    def measure(self, deadline: float) -> None:
        """All figures."""
        options, begun = self.options, time.monotonic()
        built = self.build()
        self.emit("startup_s", time.monotonic() - begun, "s", weights="dummy")
        fill_pools(built)
        for batch in () if "decode" in options.skip else options.batches:
            if time.monotonic() > deadline:
                print(f"out of time before {self.name} at {batch}")
                break
            attempt(f"{self.name} at {batch}", lambda batch=batch: self.measure_batch(built, batch))  # type: ignore[misc]
        if "prefill" not in options.skip:
            attempt(f"{self.name} prefill", lambda: self.measure_prefill(built))
        built.runner.close()

    def build(self) -> Built:
        """The server's own runner on invented weights."""
        options = self.options
        most = max(*options.batches, 16)
        needed = most * (options.context + WARM_STEPS + 2 * TIMED_STEPS + 64) + 1024
        asked = RunnerOptions(
            write_folder(self.name),
            device="cuda",
            load_format="dummy",
            max_running_requests=most,
            max_total_tokens=max(needed, 16 * 4096 + 64),
            kv_cache_dtype=options.kv_cache_dtype,
            cuda=replace(
                CudaOptions(
                    attention=Wish(both=options.attention),
                    graph_max_tokens=most,
                    max_step_tokens=options.chunk + most,
                    prefill_graph_max_tokens=options.prefill_graphs,
                ),
                **changes(self.variant),
            ),
        )

        def on_stage(stage: str, seconds: float | None, detail: str) -> None:
            if seconds is not None:
                print(f"  {stage}: {seconds:.1f} s ({detail})")

        return build(asked, on_stage)

    def measure_batch(self, built: Built, batch: int) -> None:
        """Floor, step and busy share."""
        options = self.options
        plans = decode_plans(batch, options.context)
        run_late(built.runner, plans, WARM_STEPS)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        device_s = run_late(built.runner, plans, TIMED_STEPS)
        step_s = (time.perf_counter() - begun) / TIMED_STEPS
        self.emit("decode_step_ms", step_s * 1e3, "ms", batch=batch)
        self.emit("decode_device_ms", device_s / TIMED_STEPS * 1e3, "ms", batch=batch)
        if "floor" not in options.skip:
            item = 1 if options.kv_cache_dtype != "auto" else 2
            floor_s = self.floors.seconds(self.name, batch, options.context + TOKENS_SINCE, item)
            self.emit("step_floor_ms", floor_s * 1e3, "ms", batch=batch)
            self.emit("decode_step_ratio", step_s / floor_s, "x", batch=batch)
        if "profile" not in options.skip:
            self.show(lambda: run_late(built.runner, plans, 16), batch=batch)

    def measure_prefill(self, built: Built) -> None:
        """Prompts of random tokens, in chunks."""
        chunk = self.options.chunk
        num_prompts, num_tokens = self.options.prompts or PREFILL.get(self.name, DEFAULT_PREFILL)
        num_prompts = min(num_prompts, built.cache_config.num_rows - 1)
        plans = prefill_plans(num_prompts, num_tokens, chunk)
        run_late(built.runner, iter(plans), min(2, len(plans)))  # compiles
        rates = []
        for _ in range(2):
            plans = prefill_plans(num_prompts, num_tokens, chunk)
            torch.cuda.synchronize()
            begun = time.perf_counter()
            run_late(built.runner, iter(plans), len(plans))
            rates.append(num_prompts * num_tokens / (time.perf_counter() - begun))
        self.emit("prefill_tok_s", max(rates), "tok/s", prompts=num_prompts, tokens=num_tokens)
        if "profile" not in self.options.skip:
            plans = prefill_plans(num_prompts, num_tokens, chunk)[:3]
            self.show(lambda: run_late(built.runner, iter(plans), len(plans)), phase="prefill")

    def show(self, work: Callable[[], object], **params: str | float) -> None:
        """The GPU's busy share, and what it is busy with."""
        trace = self.options.trace
        name = "-".join([self.name, self.variant, *map(str, params.values())]).replace("+", "_")
        busy = busy_share(work, None if trace is None else trace / f"trace-{name}.json.gz")
        self.emit("gpu_busy_share", busy.share, "", **params)
        show(busy)

    def emit(self, metric: str, value: float, unit: str, **params: str | float) -> None:
        """Prints and saves one figure."""
        options = self.options
        params = {"shape": self.name, **params, "attention": options.attention}
        if self.variant != "base":
            params["variant"] = self.variant
        if options.kv_cache_dtype != "auto":
            params["kv_cache_dtype"] = options.kv_cache_dtype
        if options.prefill_graphs:
            params["prefill_graphs"] = options.prefill_graphs
        if options.context != USUAL_CONTEXT:
            params["context"] = options.context
        record(options.results, metric, value, unit, **params)


def fill_pools(built: Built) -> None:
    """Random keys and values: a pool of zeros hides what is wrong, and may even run faster."""
    for layer in built.runner.parts.kv:  # type: ignore[attr-defined]
        for pool in (layer.keys, layer.values):
            for part in pool.split(1 << 16):
                part.copy_(torch.randn(part.shape, device=GPU, dtype=torch.bfloat16).mul_(0.3))


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


if __name__ == "__main__":
    main()
