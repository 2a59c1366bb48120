"""Recurrent layers alone on a GPU: our kernels, and those of fla-core and FlashInfer where they are installed.

python benchmarks/gpu_recurrent.py --seconds 200          # fla-core 0.6.0, with einops

Prints microseconds a layer; for decode steps also the share of a copy's bandwidth that reading and writing the states
takes. Others get their inputs in their own layout: what it costs to bring them there, to compute decays and strengths
and to gather states is not counted against them. Their outputs are held against ours.
"""

import argparse
import importlib
import importlib.util
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from gpu_decode import attempt, copy_bandwidth, replay_s
from record import record
from torch import Tensor

from corymb.kernels.attention import RaggedLayout
from corymb.kernels.recurrence import Convolution, DeltaRule, StateSpace
from corymb.kernels.triton_jit import Launch
from corymb.kernels.triton_recurrence import RecurrentTiling, TritonRecurrence

GPU = torch.device("cuda")
TYPE = torch.bfloat16
DECODES = (1, 8, 64, 256)
PREFILLS = ((8192,), (2048,) * 4, (512,) * 16, (2048, *[1] * 63))
SWEPT = ((1,) * 8, (1,) * 64, (8192,), (2048,) * 4)
FOLDS = [RecurrentTiling(fold_values=v, fold_warps=w) for v, w in ((32, 4), (32, 2), (16, 2), (16, 1), (8, 1), (64, 4))]
SCANS = [
    RecurrentTiling(scan_values=values, scan_warps=warps, scan_stages=stages, solve_warps=solve)
    for values, warps, stages in ((32, 8, 2), (32, 4, 2), (64, 8, 2), (64, 8, 1), (16, 4, 2), (32, 8, 1))
    for solve in (4, 8)
]
LEAST_AGREEMENT = 0.02  # relative error in bfloat16

Work = Callable[[], Tensor]


@dataclass(frozen=True)
class Step:
    """The rows of one step, all with a past."""

    widths: tuple[int, ...]
    layout: RaggedLayout

    @property
    def num_tokens(self) -> int:
        """Of all rows."""
        return sum(self.widths)

    @property
    def is_decode(self) -> bool:
        """Whether each row has one token."""
        return self.num_tokens == len(self.widths)


@dataclass(frozen=True)
class Case:
    """One operation: ours, those of others, and the bytes of state that it must read and write."""

    name: str
    ours: Work
    others: dict[str, Work]
    state_bytes: int


def main() -> None:
    """Every operation for every step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--parts", nargs="+", choices=["compare", "sweep"], default=["compare", "sweep"])
    parser.add_argument("--results", default="gpu")
    options = parser.parse_args()
    deadline, bandwidth = time.monotonic() + options.seconds, copy_bandwidth()
    torch.manual_seed(0)
    steps = [make_step(widths) for widths in [*((1,) * batch for batch in DECODES), *PREFILLS]]
    makers = (convolution, delta_rule, scan)
    for part, step, make in itertools.product(options.parts, steps, makers):
        if time.monotonic() > deadline:
            print("out of time")
            return
        label = f"{make.__name__} {describe(step.widths)}"
        if part == "compare":
            attempt(label, lambda make=make, step=step: compare(make(step), step, bandwidth, options))
        elif make is not convolution and step.widths in SWEPT:
            attempt(label, lambda make=make, step=step: sweep(make, step))


def compare(case: Case, step: Step, bandwidth: float, options: argparse.Namespace) -> None:
    """Times one operation. Outputs first: a replay moves the states on."""
    kernels = {"corymb": case.ours, **case.others}
    outputs = {name: attempt(f"{case.name}, {name}", work) for name, work in kernels.items()}
    for name, work in kernels.items():
        if outputs[name] is None:
            continue
        seconds = attempt(f"{case.name}, {name}", lambda work=work: replay_s(work))
        if seconds is None:
            continue
        params: dict[str, str | float] = {"operation": case.name, "kernel": name, "step": describe(step.widths)}
        if step.is_decode:
            params["bandwidth_share"] = round(2 * case.state_bytes / bandwidth / seconds, 3)
        if name != "corymb":
            params["relative_difference"] = difference(outputs[name].float(), outputs["corymb"].float())
        record(options.results, "recurrent_us", seconds * 1e6, "us", **params)


def sweep(make: Callable[[Step, RecurrentTiling], Case], step: Step) -> None:
    """Times our variants, best first; the best belongs in kernels/triton_recurrence.py."""
    times = []
    for tiling in FOLDS if step.is_decode else SCANS:
        seconds = attempt(str(tiling), lambda tiling=tiling: replay_s(make(step, tiling).ours))
        if seconds is not None:
            times.append((seconds, tiling))
    for seconds, tiling in sorted(times, key=lambda one: one[0])[:6]:
        print(f"  {seconds * 1e6:8.1f} µs  {tiling}", flush=True)


def difference(actual: Tensor, expected: Tensor) -> float:
    """Relative error; complains of one that rounding does not explain."""
    error = float((actual.reshape(-1) - expected.reshape(-1)).norm() / expected.norm())
    if not error < LEAST_AGREEMENT:
        print(f"  outputs differ by {error:.3f}")
    return round(error, 4)


def convolution(step: Step, tiling: RecurrentTiling | None = None) -> Case:
    """Qwen3-Next's."""
    channels, width = 8192, 4
    weights = Convolution(torch.randn(width, channels, device=GPU) / width, None, silu=True)
    x, windows = normal(step.num_tokens, channels), normal(len(step.widths) + 1, width - 1, channels)
    ours = back_end(tiling)
    others: dict[str, Work] = {}
    if fla := optional("fla.modules.causal_conv1d"):
        taps, lengths = weights.weight.t().contiguous().to(TYPE), cumulative(step)
        # [rows, channels, width]: a window as fla keeps it, with one input more than is needed.
        initial = F.pad(windows[1:], (0, 0, 1, 0)).transpose(1, 2).contiguous()
        others["fla"] = lambda: fla.causal_conv1d(
            x[None], taps, initial_state=initial, activation="silu", cu_seqlens=lengths
        )[0]
    return Case("convolution", lambda: ours.convolve(x, weights, windows, step.layout), others, 0)


def delta_rule(step: Step, tiling: RecurrentTiling | None = None) -> Case:
    """Qwen3-Next's."""
    keys, values, dim = 16, 32, 128
    rule = DeltaRule(keys, values, dim, dim, rate=-torch.rand(values, device=GPU), bias=torch.zeros(values, device=GPU))
    qkv = normal(step.num_tokens, 2 * keys * dim + values * dim)
    strengths, decays = normal(step.num_tokens, values), normal(step.num_tokens, values)
    pool = torch.randn(len(step.widths) + 1, values, dim, dim, device=GPU)
    ours = back_end(tiling)
    q, k, v = (part.contiguous().view(step.num_tokens, -1, dim) for part in qkv.split([2048, 2048, 4096], dim=-1))
    log_decay = rule.rate * F.softplus(decays.float())
    beta, states, lengths = strengths.float().sigmoid(), pool[1:].clone(), cumulative(step)
    inputs = {"initial_state": states, "output_final_state": True, "use_qk_l2norm_in_kernel": True}
    others: dict[str, Work] = {}
    if fla := optional("fla.ops.gated_delta_rule"):
        kernel = fla.fused_recurrent_gated_delta_rule if step.is_decode else fla.chunk_gated_delta_rule
        heads, gates = (q[None], k[None], v[None]), {"g": log_decay[None], "beta": beta[None].to(TYPE)}
        others["fla"] = lambda: kernel(*heads, **gates, cu_seqlens=lengths, **inputs)[0]
    if step.is_decode and (flashinfer := optional("flashinfer.gdn_decode")):
        rate, bias = (-rule.rate).log(), rule.bias
        heads = tuple(part[:, None] for part in (q, k, v))
        tail = (rate, decays[:, None], bias, strengths[:, None])
        others["flashinfer"] = lambda: flashinfer.gated_delta_rule_decode(*heads, states, *tail)[0]
    if not step.is_decode and (flashinfer := optional("flashinfer.gdn_prefill")):
        first = states.transpose(-1, -2).contiguous()
        # It takes queries and keys as they are.
        unit = [F.normalize(part.float(), dim=-1).to(TYPE) for part in (q, k)]
        others["flashinfer"] = lambda: flashinfer.chunk_gated_delta_rule(
            *unit, v, g=log_decay.exp(), beta=beta, initial_state=first, output_final_state=True,
            cu_seqlens=lengths, output_state=torch.empty_like(first),
        )[0]  # fmt: skip
    state_bytes = states.numel() * 4
    work = lambda: ours.apply_delta_rule(qkv, strengths, decays, rule, pool, step.layout)  # noqa: E731
    return Case("delta rule", work, others, state_bytes)


def scan(step: Step, tiling: RecurrentTiling | None = None) -> Case:
    """Falcon-H1-7B's."""
    num_heads, dim, size = 24, 128, 256
    rate, bias, skip = -torch.rand(num_heads, device=GPU), *torch.zeros(2, num_heads, device=GPU)
    space = StateSpace(num_heads, dim, 1, size, rate, bias, skip, least_step=0.0, most_step=float("inf"))
    xbc, steps = normal(step.num_tokens, num_heads * dim + 2 * size), normal(step.num_tokens, num_heads)
    pool = torch.randn(len(step.widths) + 1, num_heads, size, dim, device=GPU)
    ours = back_end(tiling)
    x, b, c = (part.contiguous() for part in xbc.split([num_heads * dim, size, size], dim=-1))
    x, states, lengths = x.view(-1, num_heads, dim), pool[1:].clone(), cumulative(step)
    others: dict[str, Work] = {}
    if not step.is_decode and (fla := optional("fla.ops.simple_gla")):
        sizes = F.softplus(steps.float())
        heads = [part[None, :, None].expand(1, -1, num_heads, -1).contiguous() for part in (c, b)]
        taken, decay = (x * sizes[..., None]).to(TYPE)[None], (rate * sizes)[None]
        others["fla"] = lambda: fla.chunk_simple_gla(
            *heads, taken, g=decay, scale=1.0, initial_state=states, output_final_state=True, cu_seqlens=lengths
        )[0]
    if step.is_decode and (flashinfer := optional("flashinfer.mamba")):
        turned = states.transpose(-1, -2).contiguous()
        wide = rate[:, None, None].expand(-1, dim, size)
        d, dt_bias = (part[:, None].expand(-1, dim) for part in (skip, bias))
        inputs = (x, steps[..., None].expand(-1, -1, dim), wide, b[:, None], c[:, None], d.to(TYPE))
        more = {"dt_bias": dt_bias.to(TYPE), "dt_softplus": True}
        others["flashinfer"] = lambda: flashinfer.selective_state_update(turned, *inputs, **more)
    return Case("scan", lambda: ours.scan(xbc, steps, space, pool, step.layout), others, states.numel() * 4)


def make_step(widths: tuple[int, ...]) -> Step:
    """Rows that begin on the grid; slot r + 1 is row r's."""
    host, count = np.array(widths, np.int32), len(widths)
    starts, rows = np.full(count, 1024, np.int32), np.arange(1, count + 1, dtype=np.int32)
    put = lambda array: torch.from_numpy(array).to(GPU)  # noqa: E731
    tokens = torch.zeros(int(host.sum()), dtype=torch.int64, device=GPU)
    layout = RaggedLayout(
        rows=put(rows),
        widths=put(host),
        starts=put(starts),
        offsets=put(np.concatenate(([0], np.cumsum(host))).astype(np.int32)),
        positions=tokens,
        slots=tokens,
        sliding_slots=None,
        table=torch.zeros(count + 1, 1, dtype=torch.int32, device=GPU),
        full_to_sliding=None,
        host_rows=rows,
        host_widths=host,
        host_starts=starts,
        state_slots=put(rows.astype(np.int64)),
    )
    return Step(widths, layout)


def back_end(tiling: RecurrentTiling | None) -> TritonRecurrence:
    """Ours."""
    sms = torch.cuda.get_device_properties(GPU).multi_processor_count
    return TritonRecurrence(Launch(interpreted=False, early=True, num_sms=sms), tiling=tiling)


def optional(module: str):
    """A module of a package that need not be there, or lacks one of its own."""
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        return None
    try:
        return importlib.import_module(module)
    except ImportError as error:
        print(f"  {module} is left out: {error}")
        return None


def cumulative(step: Step) -> Tensor:
    """int64 [R + 1], as others want the rows' ends."""
    return step.layout.offsets.to(torch.int64)


def normal(*shape: int) -> Tensor:
    """Random inputs."""
    return torch.randn(shape, device=GPU).to(TYPE)


def describe(widths: tuple[int, ...]) -> str:
    """A step in words."""
    counts: Iterator[str] = (f"{widths.count(width)} x {width}" for width in dict.fromkeys(widths))
    return " + ".join(counts)


if __name__ == "__main__":
    main()
