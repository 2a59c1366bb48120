"""How large the attention kernel's tiles are: a pure function of a layer's shape."""

from dataclasses import dataclass
from typing import Literal, Protocol

from corymb.kernels.attention import AttentionSpec
from corymb.kernels.triton_jit import next_power_of_2

NARROW_ROWS = 16  # the smallest tensor-core tile: the queries of a decode step, padded
SMALLEST_DIM = 16  # of a product's inner side
MERGE_STAGES = 3  # most tiles have two parts
MIN_SHARE_KEYS = 128  # a lane reads at least so many keys: shorter parts cost more to merge than they save


Variant = Literal["single", "narrow", "wide"]  # one row that fits a narrow tile, rows that do, any rows
VARIANTS: tuple[Variant, ...] = ("single", "narrow", "wide")


@dataclass(frozen=True, slots=True)
class Tiling:
    """One variant of the attention kernel."""

    block_m: int  # query rows of a tile: tokens × query heads of a KV head, padded
    block_n: int  # keys of a block
    num_warps: int
    num_stages: int
    programs_per_sm: int
    min_share_keys: int = MIN_SHARE_KEYS

    def tile_tokens(self, group: int) -> int:
        """New tokens of a tile."""
        return self.block_m // group


class ChooseTiling(Protocol):
    """Decides the variants of a layer's kernel."""

    def __call__(self, spec: AttentionSpec, *, kv_bytes: int, variant: Variant) -> Tiling:
        """See choose_tiling."""
        ...


def choose_variant(spec: AttentionSpec, *, num_rows: int, most_tokens: int) -> Variant:
    """For a step of so many rows, whose longest has so many new tokens."""
    if not fits_narrow(spec, most_tokens):
        return "wide"
    return "single" if num_rows == 1 else "narrow"


def choose_tiling(spec: AttentionSpec, *, kv_bytes: int, variant: Variant) -> Tiling:
    """`kv_bytes` is the size of one cached number.

    A narrow tile is bound by memory: two programs an SM, each with about 64 KiB of keys and values on their way (half
    of STAGES is spent on looking up the slots). A wide one is bound by products and wants many rows.
    """
    dim = padded_dim(spec)
    narrow_rows = max(NARROW_ROWS, next_power_of_2(spec.num_heads // spec.num_kv_heads))
    # An 8-bit block is half as long to fetch: look further ahead to keep as many bytes on their way.
    stages = 5 if kv_bytes > 1 else 7
    if variant == "single":
        # Most multiprocessors have nothing to read: small programs leave room for the product after them to start.
        return Tiling(narrow_rows, max(4096 // dim, 16), num_warps=8, num_stages=stages, programs_per_sm=2)
    if variant == "narrow":
        block_n = min(max(8192 // dim, 16), 128)
        return Tiling(narrow_rows, block_n, num_warps=4, num_stages=stages, programs_per_sm=2)
    if dim <= 128:
        return Tiling(block_m=max(128, narrow_rows), block_n=64, num_warps=8, num_stages=3, programs_per_sm=1)
    return Tiling(block_m=max(64, narrow_rows), block_n=32, num_warps=8, num_stages=3, programs_per_sm=1)


def padded_dim(spec: AttentionSpec) -> int:
    """How many numbers of a head a tile holds."""
    return max(SMALLEST_DIM, next_power_of_2(spec.head_dim))


def fits_narrow(spec: AttentionSpec, most_tokens: int) -> bool:
    """Whether a row of so many new tokens fits one narrow tile."""
    group = spec.num_heads // spec.num_kv_heads
    return most_tokens * group <= max(NARROW_ROWS, next_power_of_2(group))
