"""Compiles every kernel for sm_90 as the server calls it and prints what the assembler says, a JSON line each."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import sm90

seen = sm90.install().seen

import numpy as np  # noqa: E402
import torch  # noqa: E402

from corymb.kernels import triton_experts, triton_linear, triton_steps  # noqa: E402
from corymb.kernels.attention import (  # noqa: E402
    AttentionSpec,
    HeadChanges,
    HeadNorms,
    IndexSpec,
    KVLayer,
    RaggedLayout,
    StateMarks,
)
from corymb.kernels.block_attention import BlockHeads, Contexts  # noqa: E402
from corymb.kernels.packing import Windows  # noqa: E402
from corymb.kernels.packing import room as packing_room  # noqa: E402
from corymb.kernels.recurrence import Convolution, DeltaRule, GatedNorm, StateSpace  # noqa: E402
from corymb.kernels.routing import SWIGLU, Gating, Routing  # noqa: E402
from corymb.kernels.sampling import Choice, Draws  # noqa: E402
from corymb.kernels.settling import Drafted, Settled  # noqa: E402
from corymb.kernels.standing import NUM_FACTS  # noqa: E402
from corymb.kernels.standing import room as standing_room  # noqa: E402
from corymb.kernels.triton_ahead import Ahead  # noqa: E402
from corymb.kernels.triton_all_reduce import PickRows, SumRows  # noqa: E402
from corymb.kernels.triton_allotting import TritonAllotting  # noqa: E402
from corymb.kernels.triton_attention import Limits, TritonAttention  # noqa: E402
from corymb.kernels.triton_block_attention import TritonBlocks  # noqa: E402
from corymb.kernels.triton_carrying import TritonCarrier  # noqa: E402
from corymb.kernels.triton_distillation import TritonDistillation  # noqa: E402
from corymb.kernels.triton_gather import gather_heads  # noqa: E402
from corymb.kernels.triton_indices import gather_slots  # noqa: E402
from corymb.kernels.triton_jit import Launch  # noqa: E402
from corymb.kernels.triton_operations import TritonOperations  # noqa: E402
from corymb.kernels.triton_packing import TritonPacking  # noqa: E402
from corymb.kernels.triton_recurrence import TritonRecurrence  # noqa: E402
from corymb.kernels.triton_sampling import TritonSampling  # noqa: E402
from corymb.kernels.triton_settling import TritonSettling  # noqa: E402
from corymb.kernels.triton_standing import TritonStanding  # noqa: E402

CPU = torch.device("cpu")
LAUNCH = Launch(interpreted=False, early=True, num_sms=132)
LLAMA = AttentionSpec(num_heads=32, num_kv_heads=8, head_dim=128, scale=128**-0.5)
SMOLLM = AttentionSpec(num_heads=9, num_kv_heads=3, head_dim=64, scale=0.125)
GEMMA = AttentionSpec(num_heads=4, num_kv_heads=1, head_dim=256, scale=0.0625, window=512, soft_cap=50.0)
GPT_OSS = AttentionSpec(num_heads=64, num_kv_heads=8, head_dim=64, scale=0.125, window=128, sinks=torch.zeros(64))
TINY = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=8, scale=0.3)  # of models made for tests, in float32


def zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Any tensor will do: nothing runs."""
    return torch.zeros(shape, dtype=dtype)


def layout(widths: list[int], *, sliding: bool) -> RaggedLayout:
    """A step of rows with these widths."""
    num_rows, num_tokens = len(widths), sum(widths)
    host = np.asarray(widths, np.int32)
    slots = zeros(num_tokens, dtype=torch.int64)
    index = zeros(num_rows, dtype=torch.int32)
    return RaggedLayout(
        rows=index,
        widths=torch.from_numpy(host),
        starts=index,
        offsets=zeros(num_rows + 1, dtype=torch.int32),
        positions=slots,
        slots=slots,
        sliding_slots=slots if sliding else None,
        table=zeros(num_rows + 1, 256, dtype=torch.int32),
        full_to_sliding=zeros(64, dtype=torch.int32) if sliding else None,
        host_rows=host,
        host_widths=host,
        host_starts=host,
    )


def attend(
    spec: AttentionSpec,
    widths: list[int],
    kv_dtype: torch.dtype,
    *,
    deterministic: bool = False,
    ahead: Ahead | None = None,
) -> None:
    """One layer, by way of the joined pass."""
    dtype = torch.float32 if kv_dtype == torch.float32 else torch.bfloat16
    step = layout(widths, sliding=spec.window is not None)
    limits = Limits(max_rows=512, max_tokens=4096)
    attention = TritonAttention(
        [spec], limits, device=CPU, kv_dtype=kv_dtype, launch=LAUNCH, deterministic=deterministic, ahead=ahead
    )
    attention.plan(step)
    heads = zeros(step.num_tokens, spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim, dtype=dtype)
    pool = zeros(64, spec.num_kv_heads, spec.head_dim).to(kv_dtype)
    weight = zeros(spec.head_dim, dtype=torch.float32)
    changes = HeadChanges(zeros(step.num_tokens, spec.head_dim, dtype=torch.float32), HeadNorms(weight, weight, 1e-5))
    attention.run_joined(heads, changes, spec, KVLayer(pool, pool))
    q, k, v = heads.split((spec.num_heads, spec.num_kv_heads, spec.num_kv_heads), dim=1)
    attention.run(q, k, v, spec, KVLayer(pool, pool))


def attend_blocks() -> None:
    """The block of a draft, of an 8B model's shape and of the demo model's, sliding layers among them."""
    for spec, num_slots in ((LLAMA, 7), (SMOLLM, 5), (replace(LLAMA, window=128), 16)):
        blocks, pool = TritonBlocks(LAUNCH), zeros(64, spec.num_kv_heads, spec.head_dim)
        blocks.plan(Contexts(zeros(9, 256, dtype=torch.int32), torch.arange(4), zeros(4, dtype=torch.int32)))
        keys = zeros(4, num_slots, spec.num_kv_heads, spec.head_dim)
        heads = BlockHeads(zeros(4, num_slots, spec.num_heads, spec.head_dim), keys, keys)
        blocks.attend(heads, KVLayer(pool, pool), spec=spec, causal=spec.window is not None)


def attend_latents(dtype: torch.dtype) -> None:
    """DeepSeek's latents, dense and chosen: a few tokens, whose keys are split, and many."""
    small = dtype == torch.float32
    spec = AttentionSpec(
        num_heads=8 if small else 128,
        num_kv_heads=1,
        head_dim=40 if small else 576,
        scale=0.07,
        latent_dim=32 if small else 512,
        index=IndexSpec(4, 16, 6) if small else IndexSpec(64, 128, 2048),
    )
    keys = zeros(64, 1, spec.head_dim, dtype=dtype)
    cache = KVLayer(keys, keys[..., : spec.value_dim], index_keys=zeros(64, spec.index.head_dim, dtype=dtype))
    for widths in ([1] * 8, [500, 1]):
        step = layout(widths, sliding=False)
        limits = Limits(max_rows=512, max_tokens=4096)
        attention = TritonAttention([spec], limits, device=CPU, kv_dtype=dtype, launch=LAUNCH)
        attention.plan(step)
        tokens = step.num_tokens
        index_q = zeros(tokens, spec.index.num_heads, spec.index.head_dim, dtype=dtype)
        weights = zeros(tokens, spec.index.num_heads, dtype=torch.float32)
        index_keys = zeros(tokens, spec.index.head_dim, dtype=dtype)
        q, latents = (
            zeros(tokens, spec.num_heads, spec.head_dim, dtype=dtype),
            zeros(tokens, spec.head_dim, dtype=dtype),
        )
        chosen = attention.choose(index_q, weights, index_keys, spec, cache)
        for keys_of_token in (None, chosen):
            attention.run_latent(q, latents, spec, cache, keys_of_token)


def sample() -> None:
    """Every way to choose a token."""
    sampling, logits = TritonSampling(LAUNCH), zeros(4, 128256, dtype=torch.float32)
    ones, index = torch.ones(4), torch.arange(4)
    draws = Draws(ones, index, ones, ones, zeros(4, 2, dtype=torch.int32), any_min_p=True)
    sampling.greedy(logits)
    sampling.mask(logits, index, zeros(4, 4008, dtype=torch.int32))
    for filtered in (True, False):
        sampling.draw(logits, index, draws, index, filtered=filtered)


def operate() -> None:
    """Everything between products."""
    operations, x, weight = TritonOperations(LAUNCH), zeros(4, 4096), zeros(4096, dtype=torch.float32)
    ahead = Ahead(8 << 20, num_programs=132)
    for num_rows in (4, 32, 4, 32):
        ahead.passed(x, num_rows)
    attend(LLAMA, [1] * 32, torch.bfloat16, ahead=ahead)
    asking = TritonOperations(LAUNCH, ahead)
    asking.add_rms_norm(x, zeros(4, 4096), weight, 1e-5)
    asking.silu_mul(x)
    triton_linear.multiply(x, zeros(24576, 4096), launch=LAUNCH, gate="silu", ahead=ahead)
    operations.rms_norm(x, weight, 1e-5)
    operations.add_rms_norm(x, zeros(4, 4096), weight, 1e-5)
    operations.silu_mul(x)
    operations.gelu_tanh_mul(x)
    operations.rope(zeros(4, 40, 128), zeros(4, 128, dtype=torch.float32))


def distil() -> None:
    """The loss of a draft."""
    ones = torch.ones(4)
    labels = zeros(4, dtype=torch.int64)
    logits = [zeros(4, 49152) for _ in range(2)]
    TritonDistillation(LAUNCH)(*logits, labels=labels, temperature=ones, weights=torch.ones(4, 2))


def sum_over_ranks() -> None:
    """Rows summed over two and four GPUs."""
    addresses = zeros(4, dtype=torch.int64)
    for size, width in ((2, 4096), (2, 8192), (4, 4096)):
        sums, x = SumRows(addresses, LAUNCH, rank=1, size=size), zeros(4, width)
        sums(x, addresses)
        SumRows(addresses, LAUNCH, rank=1, size=size, pushed=64)(x, addresses)
        pick = PickRows(addresses, LAUNCH, rank=1, size=size)
        pick(x, zeros(4, dtype=torch.int64), zeros(4, dtype=torch.bool), 64128, addresses)
        sums(x, addresses, residual=zeros(4, width), norm=triton_linear.Norm(zeros(width, dtype=torch.float32), 1e-5))


def multiply() -> None:
    """Products of few rows, plain and with everything around them."""
    for num_rows in (1, 33, 64):
        x = zeros(num_rows, 4096)
        triton_linear.multiply(x, zeros(6144, 4096), launch=LAUNCH)
        norm = triton_linear.Norm(zeros(4096, dtype=torch.float32), 1e-5)
        triton_linear.multiply(x, zeros(2 * 14336, 4096), launch=LAUNCH, norm=norm, gate="silu")
        triton_linear.multiply(x, zeros(4096, 4096), launch=LAUNCH, add_to=zeros(num_rows, 4096))


def mix() -> None:
    """Routed experts of few tokens, of some and of many."""
    deepseek = Routing(256, 8, scores="sigmoid", num_groups=8, top_groups=4)
    clamped = Gating(slope=1.702, lift=1.0, limit=7.0)
    for routing, gating, hidden, inner in ((deepseek, SWIGLU, 7168, 256), (Routing(32, 4), clamped, 2880, 2880)):
        count = 2  # of experts: only strides depend on it
        stacked = [zeros(count, 2 * inner, hidden), zeros(count, hidden, inner)]
        biases = [zeros(count, 2 * inner), zeros(count, hidden)] if gating is clamped else []
        correction = None if biases else zeros(256, dtype=torch.float32)
        for num_tokens in (1, 256, 4096):
            x, logits = zeros(num_tokens, hidden), zeros(num_tokens, routing.num_experts, dtype=torch.float32)
            experts = triton_experts.Stacked(*stacked, *biases)
            triton_experts.mix(x, logits, routing, gating, correction, experts, launch=LAUNCH)


def recur() -> None:
    """Layers that carry a state: single tokens, pieces of long rows, drafts and those that were kept."""
    recurrence = TritonRecurrence(LAUNCH)
    numbers = zeros(8192, dtype=torch.float32)
    slots, marks = zeros(4, dtype=torch.int64), StateMarks(zeros(4, dtype=torch.int32), zeros(4, dtype=torch.int64))
    drafted = ({"moves_states": False}, {"marks": marks})
    for widths, kind in (([1] * 4, {}), ([70, 3], {}), *(([8] * 4, kind) for kind in drafted)):
        step = replace(layout(widths, sliding=False), state_slots=slots[: len(widths)], **kind)
        num_tokens = sum(widths)
        convolution = Convolution(zeros(4, 8192, dtype=torch.float32), numbers, silu=True)
        recurrence.convolve(zeros(num_tokens, 8192), convolution, zeros(8, 3, 8192), step)
        gates = zeros(num_tokens, 32)
        rule = DeltaRule(16, 32, 128, 128, rate=numbers, bias=numbers)
        states = zeros(8, 32, 128, 128, dtype=torch.float32)
        recurrence.apply_delta_rule(zeros(num_tokens, 8192), gates, gates, rule, states, step)
        space = StateSpace(32, 64, 1, 256, numbers, numbers, numbers, least_step=0.0, most_step=math.inf)
        recurrence.scan(zeros(num_tokens, 2560), gates, space, states.view(8, 32, 256, 64), step)
    heads = zeros(4, 32, 128)
    recurrence.gate(heads, heads, GatedNorm(zeros(1, 128, dtype=torch.float32), 1e-5, gate_first=False))
    recurrence.gate(heads, heads, None)


def speculate(table: torch.Tensor, slot_map: torch.Tensor) -> None:
    """Rows that the device alone knows: found, laid out, settled."""
    standing, packed = standing_room(4, 7, CPU), packing_room(16, CPU, sliding=True)
    lengths, ids = zeros(8, dtype=torch.int32), zeros(16, dtype=torch.int64)
    TritonStanding(LAUNCH)(zeros(NUM_FACTS, 4, dtype=torch.int32), ids, lengths, standing)
    TritonAllotting(LAUNCH, max_rows=257)(zeros(4, 7, dtype=torch.float32), standing.most, 9, least=1e-6)
    drafts, widths = zeros(4, 7, dtype=torch.int64), standing.most
    for some, confidence in ((drafts, zeros(4, 7, dtype=torch.float32)), (drafts, None), (drafts[:, :0], None)):
        windows = Windows(standing.rows, standing.lengths, widths, standing.anchors, some)
        for where in (slot_map, None):
            TritonPacking(LAUNCH, max_rows=256, max_width=8)(windows, table, where, packed)
        choice, settled = Choice(ids, zeros(16, dtype=torch.bool)), Settled(ids, lengths, ids)
        TritonSettling(LAUNCH)(choice, packed, standing, Drafted(some, widths, widths, confidence), settled)


def frame() -> None:
    """What a step begins and ends with, and the list of slots."""
    staged = [zeros(4, dtype=torch.int32) for _ in range(4)]
    wide = [zeros(4, dtype=torch.int64) for _ in range(4)]
    table, slot_map = zeros(8, 64, dtype=torch.int32), zeros(64, dtype=torch.int32)
    triton_steps.begin(tuple(staged), tuple(wide), wide[0], table, slot_map, launch=LAUNCH)
    triton_steps.begin(tuple(staged), (*wide[:3], None), wide[0], table, None, launch=LAUNCH)
    triton_steps.end(wide[0], zeros(4, dtype=torch.bool), staged[0], wide[1], staged[1], launch=LAUNCH)
    speculate(table, slot_map)
    pool = zeros(64, 8, 128)
    for held in (torch.bfloat16, torch.float8_e4m3fn):
        gather_heads(KVLayer(pool.to(held), pool.to(held)), staged[0], pool[:4], pool[4:8], launch=LAUNCH)
    for kind in (torch.int64, torch.uint8):
        carrier = TritonCarrier([zeros(64, 256, dtype=kind), zeros(64, 8, dtype=kind)], LAUNCH)
        carrier.put(carrier.gather(zeros(4, dtype=torch.int64)), zeros(4, dtype=torch.int64))
    gather_slots(layout([1, 1], sliding=True), staged[0], staged[1], staged[2], sliding=True, launch=LAUNCH)


for spec in (LLAMA, SMOLLM, GEMMA, GPT_OSS):
    for widths in ([1] * 8, [1] * 32, [64, 1]):
        attend(spec, widths, torch.bfloat16)
attend(LLAMA, [64, 1], torch.bfloat16, deterministic=True)
for widths in ([1] * 8, [64, 1]):
    attend(TINY, widths, torch.float32)
    attend(TINY, widths, torch.float32, deterministic=True)
for widths in ([1] * 8, [1] * 32):
    attend(LLAMA, widths, torch.float8_e4m3fn)
attend(LLAMA, [1] * 8, torch.float8_e5m2)
attend(LLAMA, [64, 1], torch.float8_e4m3fn)
attend_blocks()
attend_latents(torch.bfloat16)
attend_latents(torch.float32)
sample()
operate()
distil()
multiply()
sum_over_ranks()
mix()
recur()
frame()
for kernel in seen:
    print(
        json.dumps(
            {
                "name": kernel.name,
                "registers": kernel.registers,
                "stack_bytes": kernel.stack_bytes,
                "shared_bytes": kernel.shared_bytes,
                "num_warps": kernel.num_warps,
                "async_copies": kernel.ptx.count("cp.async.c"),
                "tensor_products": kernel.ptx.count("mma.sync") + kernel.ptx.count("wgmma.mma"),
                "exact": "bf16" not in kernel.ttgir,
                "wgmma": kernel.ptx.count("wgmma.mma"),
            }
        )
    )
