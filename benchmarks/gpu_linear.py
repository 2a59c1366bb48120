"""Products of few rows on a GPU: torch's against ours, with what ours can fuse.

python benchmarks/gpu_linear.py --seconds 120

Weights take turns, 1 GB of them, so that none is read from a cache. The best variants belong in
kernels/triton_linear.py.
"""

import argparse
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from gpu_decode import GPU, attempt, random, replay_s
from gpu_shapes import shape_of
from record import record

from corymb.kernels.triton_jit import Launch
from corymb.kernels.triton_linear import multiply
from corymb.kernels.triton_products import Shape, Size, choose_shape

WEIGHT_BYTES = 1 << 30
ROWS = (1, 8, 32, 64)


def main() -> None:
    """Every product of the 8B shape, then the small model's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--results", default="gpu")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    for sweeping in (False, True):  # first everything as it is chosen now, then what may be better
        for name in ("llama-3.1-8b", "smollm2-135m"):
            for size, num_rows in itertools.product(shape_of(name).products, ROWS):
                if time.monotonic() < deadline:
                    case = Case(*size, num_rows, sweeping)
                    attempt(str(case), lambda c=case: compare(c, deadline, options))


@dataclass(frozen=True, slots=True)
class Case:
    """One product, and whether all variants are wanted."""

    num_outputs: int
    num_inputs: int
    num_rows: int
    sweeping: bool


def compare(case: Case, deadline: float, options: argparse.Namespace) -> None:
    """One product: torch's, ours as chosen, and our best variant."""
    num_outputs, num_inputs, num_rows = case.num_outputs, case.num_inputs, case.num_rows
    num_bytes = num_outputs * num_inputs * 2
    weights = [random(num_outputs, num_inputs) for _ in range(max(2, min(64, WEIGHT_BYTES // num_bytes)))]
    x = torch.randn((num_rows, num_inputs), device=GPU, dtype=torch.bfloat16)
    launch = Launch(interpreted=False, early=True, num_sms=132)

    def torchs() -> None:
        for weight in weights:
            F.linear(x, weight)

    def seconds(shape: Shape) -> float:
        def ours() -> None:
            for weight in weights:
                multiply(x, weight, launch=launch, shape=shape)

        return replay_s(ours) / len(weights)

    base = replay_s(torchs) / len(weights)
    chosen = choose_shape(Size(num_rows, num_outputs, num_inputs), gated=False)
    times = {}
    for shape in itertools.chain([chosen], variants(num_rows, num_inputs) if case.sweeping else ()):
        if time.monotonic() < deadline:
            taken = attempt(str(shape), lambda s=shape: seconds(s))
            if taken is not None:
                times[shape] = taken
    best = min(times, key=times.__getitem__)
    print(
        f"{num_outputs} x {num_inputs}, {num_rows} rows: torch {base * 1e6:.1f} µs "
        f"({num_bytes / base / 1e12:.2f} TB/s), ours {times[chosen] * 1e6:.1f}, best {times[best] * 1e6:.1f} µs {best}",
        flush=True,
    )
    shown = {"outputs": num_outputs, "inputs": num_inputs, "rows": num_rows}
    record(options.results, "product_us", base * 1e6, "us", by="torch", **shown)
    record(options.results, "product_us", times[best] * 1e6, "us", by=str(best), **shown)


def variants(num_rows: int, num_inputs: int) -> Iterator[Shape]:
    """What may be faster."""
    for block_n, block_k, warps, stages in itertools.product((16, 32, 64), (64, 128, 256, 512), (2, 4), (4, 6)):
        stage_bytes = (max(16, num_rows) + block_n) * block_k * 2
        if num_inputs % block_k == 0 and 8192 <= stage_bytes <= 40_000 and stage_bytes * stages <= 220_000:
            yield Shape(block_n, block_k, warps, stages)


if __name__ == "__main__":
    main()
