"""Steps of a model that several GPUs share, against one rank's floor; prefill; what communication takes.

python benchmarks/gpu_tp.py --tp 2 --shape llama-3.1-8b --batches 1 8 64 256 --seconds 200 --results gpu_tp

Starts a process for each rank. The floor of a step is one rank's products, measured as a graph of them alone, its bytes
of keys and values over the bandwidth of a copy, and as many sums over the ranks as the model has, measured alone too.
`--device cpu --shape tiny` tries the script itself, over gloo.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from gpu_decode import copy_bandwidth, products_s, random, replay_s
from gpu_profile import busy_share, show
from gpu_shapes import SHAPES, Shape, shape_of, write_folder
from gpu_steps import decode_plans, prefill_plans, run_late
from record import record
from torch import Tensor

from corymb.kernels.select import Wish
from corymb.models.build import Built, RunnerOptions, build
from corymb.models.cuda_options import CudaOptions
from corymb.models.gloo_group import GlooGroup
from corymb.models.group import Group
from corymb.models.meeting import Meeting, Ranks

WARM_STEPS, TIMED_STEPS = 24, 96
SUMS = 40  # in one graph
COMMUNICATION = ("sum_rows", "nccl", "one_shot", "two_shot")
START_S = 300.0


def main() -> None:
    """Starts the ranks, or is one."""
    options = parse()
    if options.rank is not None:
        Rank(options).run()
        return
    with tempfile.TemporaryDirectory(prefix="corymb-tp-") as folder:
        command = [sys.executable, *sys.argv, "--meeting", f"{folder}/ranks", "--rank"]
        ranks = [subprocess.Popen([*command, str(rank)]) for rank in range(options.tp)]
        sys.exit(wait_for(ranks))


def wait_for(ranks: list[subprocess.Popen[bytes]]) -> int:
    """Until all have ended, or one has failed: then the others end too."""
    try:
        while any(rank.poll() is None for rank in ranks):
            if any(rank.poll() for rank in ranks):
                break
            time.sleep(0.1)
        return max(abs(rank.poll() or 0) for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--shape", choices=list(SHAPES), default="llama-3.1-8b")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64, 256])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--chunk", type=int, default=8192)
    parser.add_argument(
        "--prompts", type=int, nargs=2, default=[16, 4000], help="of prefill: how many, of how many tokens"
    )
    parser.add_argument("--prefill-graphs", type=int, default=0, help="tokens of a prefill up to which it is captured")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--skip", nargs="*", choices=["floor", "prefill", "profile"], default=[])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seconds", type=float, default=600.0, help="start no further case after so long")
    parser.add_argument("--results", default="gpu_tp", help="name of the file under benchmarks/results")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--meeting", help=argparse.SUPPRESS)
    return parser.parse_args()


class Rank:
    """One rank's process. All do the same in the same order; rank 0 records."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.begun_s = time.monotonic()
        self.gpu = options.device == "cuda"
        self.ranks: Ranks | None = None
        self.host: GlooGroup | None = None
        if options.tp > 1:
            place = Path(options.meeting)
            self.ranks = Ranks(Meeting(options.rank, options.tp, options.tp, place, START_S, options.seconds + START_S))
            self.host = self.ranks.group("benchmark")
        self.shape = shape_of(options.shape, options.tp)
        if self.gpu:
            torch.cuda.set_device(options.rank)

    def run(self) -> None:
        """Measures everything until the time is over."""
        options = self.options
        bandwidth = copy_bandwidth() if self.gpu else 0.0
        products = self.products()
        built = self.build()
        self.emit("startup_s", time.monotonic() - self.begun_s, "s", weights="dummy")
        if self.gpu:
            fill_pools(built)
        for batch in options.batches:
            if self.has_time(f"batch {batch}"):
                self.measure_batch(built, batch, products.get(batch), bandwidth)
        if "prefill" not in options.skip and self.has_time("prefill"):
            self.measure_prefill(built)
        built.runner.close()

    def build(self) -> Built:
        """The server's own runner on invented weights."""
        options = self.options
        most = max(options.batches)
        num_prompts, num_tokens = options.prompts
        needed = most * (options.context + WARM_STEPS + 2 * TIMED_STEPS + 64) + 1024
        asked = RunnerOptions(
            write_folder(options.shape),
            device=options.device,
            load_format="dummy",
            max_running_requests=max(most, num_prompts),
            max_total_tokens=max(needed, num_prompts * (num_tokens + 1) + 64),
            ranks=self.ranks,
            cuda=CudaOptions(
                index=options.rank,
                attention=Wish(both="auto", deterministic=options.deterministic),
                graph_max_tokens=most,
                max_step_tokens=options.chunk + most,
                prefill_graph_max_tokens=options.prefill_graphs,
            ),
        )

        def on_stage(stage: str, seconds: float | None, detail: str) -> None:
            if seconds is not None and options.rank == 0:
                print(f"  {stage}: {seconds:.1f} s ({detail})", flush=True)

        return build(asked, on_stage)

    def has_time(self, what: str) -> bool:
        """The same answer on every rank."""
        left = int(time.monotonic() - self.begun_s < self.options.seconds)
        if self.host is not None:
            left = self.host.least([left])[0]
        if not left and self.options.rank == 0:
            print(f"out of time before {what}")
        return bool(left)

    def products(self) -> dict[int, float]:
        """Seconds of one rank's products by batch. Before the model is there: beside it a large one's do not fit."""
        if not self.gpu or "floor" in self.options.skip:
            return {}
        self.meet()
        found = {batch: products_s(self.shape, batch) for batch in self.options.batches}
        torch.cuda.empty_cache()
        return found

    def measure_batch(self, built: Built, batch: int, products: float | None, bandwidth: float) -> None:
        """Floor, step and what communication takes of it."""
        options = self.options
        floor_s = None if products is None else self.floor_s(built, batch, products, bandwidth)
        plans = decode_plans(batch, options.context)
        run_late(built.runner, plans, WARM_STEPS)
        self.meet()
        begun = time.perf_counter()
        device_s = run_late(built.runner, plans, TIMED_STEPS)
        step_s = (time.perf_counter() - begun) / TIMED_STEPS
        self.emit("decode_step_ms", step_s * 1e3, "ms", batch=batch)
        self.emit("decode_device_ms", device_s / TIMED_STEPS * 1e3, "ms", batch=batch)
        if floor_s is not None:
            self.emit("decode_step_ratio", step_s / floor_s, "x", batch=batch)
        if self.gpu and "profile" not in options.skip:
            self.profile(lambda: run_late(built.runner, plans, 16), batch=batch)

    def floor_s(self, built: Built, batch: int, products: float, bandwidth: float) -> float:
        """See above."""
        options, shape = self.options, self.shape
        context = options.context + WARM_STEPS + TIMED_STEPS / 2
        kv_s = batch * context * shape.kv_bytes / bandwidth
        group: Group = built.runner.parts.model.vocabulary.group  # type: ignore[attr-defined]
        sums = 0.0
        if group.size > 1:
            x = torch.zeros((batch, shape.products[0][1]), device="cuda", dtype=torch.bfloat16)
            self.meet()
            one_s = replay_s(lambda: sum_often(group, x)) / SUMS
            self.emit("all_reduce_us", one_s * 1e6, "µs", batch=batch)
            sums = (2 * shape.num_layers + 1) * one_s
        self.emit("step_floor_ms", (products + kv_s + sums) * 1e3, "ms", batch=batch)
        return products + kv_s + sums

    def measure_prefill(self, built: Built) -> None:
        """Prompts of random tokens, in chunks, and their products against the rate of a large one."""
        options = self.options
        num_prompts, num_tokens = options.prompts
        run_late(built.runner, iter(prefill_plans(num_prompts, num_tokens, options.chunk)), 2)
        rates = []
        for _ in range(2):
            plans = prefill_plans(num_prompts, num_tokens, options.chunk)
            self.meet()
            begun = time.perf_counter()
            run_late(built.runner, iter(plans), len(plans))
            rates.append(num_prompts * num_tokens / (time.perf_counter() - begun))
        self.emit("prefill_tok_s", max(rates), "tok/s", prompts=num_prompts, tokens=num_tokens)
        if not self.gpu:
            return
        self.meet()
        peak = matrix_rate()
        self.emit("matrix_tflop_s", peak / 1e12, "TFLOP/s")
        self.emit("prefill_matrix_share", max(rates) * token_flop(self.shape) / peak, "", prompts=num_prompts)
        if "profile" not in options.skip:
            plans = prefill_plans(num_prompts, num_tokens, options.chunk)[:3]
            self.profile(lambda: run_late(built.runner, iter(plans), len(plans)), phase="prefill")

    def profile(self, work: Callable[[], object], **params: str | int) -> None:
        """The GPU's busy share, and the share of it that communication takes, waiting for each other included."""
        self.meet()
        busy = busy_share(work)
        taken = sum(each.share for each in busy.kernels if any(name in each.name for name in COMMUNICATION))
        self.emit("gpu_busy_share", busy.share, "", **params)
        self.emit("communication_share", taken, "", **params)
        if self.options.rank == 0:
            show(busy)

    def meet(self) -> None:
        """Waits for the other ranks."""
        if self.gpu:
            torch.cuda.synchronize()
        if self.host is not None:
            self.host.least([0])

    def emit(self, metric: str, value: float, unit: str, **params: str | float | int) -> None:
        """Prints and saves one figure."""
        if self.options.rank != 0:
            return
        more = {"deterministic": 1} if self.options.deterministic else {}
        record(
            self.options.results, metric, value, unit, shape=self.options.shape, tp=self.options.tp, **params, **more
        )


def fill_pools(built: Built) -> None:
    """Random keys and values: a pool of zeros hides what is wrong, and may even run faster."""
    for layer in built.runner.parts.kv:  # type: ignore[attr-defined]
        for pool in (layer.keys, layer.values):
            for part in pool.split(1 << 16):
                part.copy_(torch.randn(part.shape, device="cuda", dtype=torch.bfloat16).mul_(0.3))


def sum_often(group: Group, x: Tensor) -> None:
    """Sums over the ranks, one after the other."""
    for _ in range(SUMS):
        group.all_reduce(x)


def token_flop(shape: Shape) -> float:
    """Of the products of one prompt token, on one rank."""
    return 2.0 * shape.num_layers * sum(outputs * inputs for outputs, inputs in shape.products)


def matrix_rate() -> float:
    """Operations a second of a product of 8192³ numbers on this GPU, all GPUs at once."""
    a, b = random(8192, 8192), random(8192, 8192)
    return 2 * 8192.0**3 / replay_s(lambda: torch.mm(a, b))


if __name__ == "__main__":
    main()
