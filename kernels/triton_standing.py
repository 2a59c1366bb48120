"""Where rows are that only the device knows, in one launch that a captured graph may hold."""

import triton.language as tl
from torch import Tensor

from corymb.kernels.standing import FIRST_OUTPUT, MOST, NOBODY, ROW, SEED, TEMPERATURE, Standing
from corymb.kernels.triton_jit import Launch, jit, next_power_of_2

NO_ROW = tl.constexpr(NOBODY)
LINE_ROW = tl.constexpr(ROW)
LINE_FIRST_OUTPUT = tl.constexpr(FIRST_OUTPUT)
LINE_MOST = tl.constexpr(MOST)
LINE_TEMPERATURE = tl.constexpr(TEMPERATURE)
LINE_SEED = tl.constexpr(SEED)
# As signed numbers; see `noise`.
GOLDEN = tl.constexpr(0x9E3779B97F4A7C15 - (1 << 64))
MIX_FIRST = tl.constexpr(0xBF58476D1CE4E5B9 - (1 << 64))
MIX_SECOND = tl.constexpr(0x94D049BB133111EB - (1 << 64))


# fmt: off
@jit
def mix(values: tl.tensor) -> tl.tensor:
    """The finaliser of SplitMix64 on int64; masks make the shifts logical ones."""
    values = (values ^ ((values >> 30) & ((1 << 34) - 1))) * MIX_FIRST
    values = (values ^ ((values >> 27) & ((1 << 37) - 1))) * MIX_SECOND
    return values ^ ((values >> 31) & ((1 << 33) - 1))


@jit
def stand_rows(
    facts: tl.tensor, last_sampled: tl.tensor, known_lengths: tl.tensor,
    rows: tl.tensor, anchors: tl.tensor, lengths: tl.tensor, num_outputs: tl.tensor, most: tl.tensor,
    temperature: tl.tensor, keys: tl.tensor, facts_stride: tl.tensor,
    NUM_DRAFTS: tl.constexpr, BLOCK: tl.constexpr,
) -> None:
    """Program r finds where row r is."""
    index = tl.program_id(0)
    fact = facts + index
    line = tl.load(fact + LINE_ROW * facts_stride)
    row = tl.maximum(line, 0).to(tl.int64)
    length = tl.load(known_lengths + row, mask=line != NO_ROW, other=0)
    outputs = (length - tl.load(fact + LINE_FIRST_OUTPUT * facts_stride)).to(tl.int64)
    tl.store(rows + index, row)
    tl.store(anchors + index, tl.load(last_sampled + row))
    tl.store(lengths + index, length)
    tl.store(num_outputs + index, outputs)
    tl.store(most + index, tl.load(fact + LINE_MOST * facts_stride))
    tl.store(temperature + index, tl.load(fact + LINE_TEMPERATURE * facts_stride).to(tl.float32, bitcast=True))
    lower = tl.load(fact + LINE_SEED * facts_stride).to(tl.int64) & 0xFFFFFFFF
    seed = lower | (tl.load(fact + (LINE_SEED + 1) * facts_stride).to(tl.int64) << 32)
    place = tl.arange(0, BLOCK)
    mixed = mix(mix(seed + GOLDEN) + (outputs + place + 1) * GOLDEN)
    at = keys + (index * NUM_DRAFTS + place) * 2
    tl.store(at, mixed.to(tl.int32), mask=place < NUM_DRAFTS)
    tl.store(at + 1, (mixed >> 32).to(tl.int32), mask=place < NUM_DRAFTS)
# fmt: on


class TritonStanding:
    """Implements `Stand`."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    def __call__(self, facts: Tensor, last_sampled: Tensor, lengths: Tensor, out: Standing) -> None:
        """See Stand."""
        num_drafts = out.keys.shape[1]
        stand_rows[(len(out.rows),)](
            facts,
            last_sampled,
            lengths,
            out.rows,
            out.anchors,
            out.lengths,
            out.num_outputs,
            out.most,
            out.temperature,
            out.keys,
            facts.stride(0),
            NUM_DRAFTS=num_drafts,
            BLOCK=next_power_of_2(num_drafts),
            **self._launch.plain(num_warps=1),
        )
