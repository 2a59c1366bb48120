"""Products of few rows on a GPU: torch's against ours, with what ours can fuse.

python benchmarks/gpu_linear.py --seconds 120
python benchmarks/gpu_linear.py --shapes qwen3-8b --gated --rows 1 64 128

With --gated, the product of gates and ups, against torch's and a kernel that gates. Weights take turns, 1 GB of them,
so that none is read from a cache. The best variants belong in kernels/triton_products.py.
"""

import argparse
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from gpu_decode import GPU, attempt, random, replay_s
from gpu_shapes import SHAPES, shape_of
from record import record

from corymb.kernels.triton_jit import Launch, next_power_of_2
from corymb.kernels.triton_linear import multiply
from corymb.kernels.triton_operations import TritonOperations
from corymb.kernels.triton_products import Shape, Size, choose_shape

WEIGHT_BYTES = 1 << 30
MOST_BYTES = 220_000  # of a program's blocks on their way
SUMS_OF_WARP = 4096  # that its registers hold


def main() -> None:
    """Every product of each shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["llama-3.1-8b", "smollm2-135m"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--gated", action="store_true")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--results", default="gpu")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    for sweeping in (False, True):  # first everything as it is chosen now, then what may be better
        for name in options.shapes:
            gated = [(SHAPES[name]["intermediate_size"], SHAPES[name]["hidden_size"])]
            for size, num_rows in itertools.product(gated if options.gated else shape_of(name).products, options.rows):
                if time.monotonic() < deadline:
                    case = Case(*size, num_rows, options.gated, sweeping)
                    attempt(str(case), lambda c=case: compare(c, deadline, options))


@dataclass(frozen=True, slots=True)
class Case:
    """One product, and whether all variants are wanted."""

    num_outputs: int
    num_inputs: int
    num_rows: int
    gated: bool
    sweeping: bool


def compare(case: Case, deadline: float, options: argparse.Namespace) -> None:
    """One product: torch's, ours as chosen, and our best variant."""
    num_outputs, num_inputs, num_rows = case.num_outputs, case.num_inputs, case.num_rows
    parts = 2 if case.gated else 1
    num_bytes = parts * num_outputs * num_inputs * 2
    weights = [random(parts * num_outputs, num_inputs) for _ in range(max(2, min(64, WEIGHT_BYTES // num_bytes)))]
    x = torch.randn((num_rows, num_inputs), device=GPU, dtype=torch.bfloat16)
    launch = Launch(interpreted=False, early=True, num_sms=132)
    operations = TritonOperations(launch)

    def torchs() -> None:
        for weight in weights:
            product = F.linear(x, weight)
            if case.gated:
                operations.silu_mul(product)

    def seconds(shape: Shape) -> float:
        def ours() -> None:
            for weight in weights:
                multiply(x, weight, launch=launch, gate="silu" if case.gated else None, shape=shape)

        return replay_s(ours) / len(weights)

    base = replay_s(torchs) / len(weights)
    chosen = choose_shape(Size(max(16, next_power_of_2(num_rows)), num_outputs, num_inputs), gated=case.gated)
    times = {}
    for shape in itertools.chain([chosen], variants(case) if case.sweeping else ()):
        if time.monotonic() < deadline:
            taken = attempt(str(shape), lambda s=shape: seconds(s))
            if taken is not None:
                times[shape] = taken
    best = min(times, key=times.__getitem__)
    print(
        f"{parts} × {num_outputs} × {num_inputs}, {num_rows} rows: torch {base * 1e6:.1f} µs "
        f"({num_bytes / base / 1e12:.2f} TB/s), ours {times[chosen] * 1e6:.1f}, best {times[best] * 1e6:.1f} µs {best}",
        flush=True,
    )
    shown = {"outputs": num_outputs, "inputs": num_inputs, "rows": num_rows, "gated": case.gated}
    record(options.results, "product_us", base * 1e6, "us", by="torch", **shown)
    record(options.results, "product_us", times[best] * 1e6, "us", by=str(best), **shown)


def variants(case: Case) -> Iterator[Shape]:
    """What may be faster."""
    parts, blocks, depths = (2, (64, 128), (64, 128)) if case.gated else (1, (16, 32, 64), (64, 128, 256, 512))
    rows = max(16, next_power_of_2(case.num_rows))
    for block_n, block_k, warps, stages in itertools.product(blocks, depths, (2, 4, 8), (3, 4, 5, 6)):
        stage_bytes = (rows + parts * block_n) * block_k * 2
        fits = case.num_inputs % block_k == 0 and 8192 <= stage_bytes <= MOST_BYTES // stages
        if fits and parts * block_n * rows <= SUMS_OF_WARP * warps:
            yield Shape(block_n, block_k, warps, stages)


if __name__ == "__main__":
    main()
