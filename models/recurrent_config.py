"""What layers that carry a state are, and where their tensors stand in a checkpoint. Imports no torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """A part of a tensor's axis that ranks share: `count` things of `size` numbers, one after another."""

    count: int
    size: int

    @property
    def length(self) -> int:
        """Numbers."""
        return self.count * self.size


@dataclass(frozen=True, slots=True)
class DeltaNetConfig:
    """A gated delta net: a short convolution over queries, keys and values, the gated delta rule, and a gated norm."""

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    width: int  # of the convolution
    grouped: bool  # the projections' outputs stand together by key head, in two tensors; else each has one of its own
    name: str = "linear_attn"

    @property
    def key_size(self) -> int:
        """Of all keys of a token, or all queries."""
        return self.num_key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        """Of all values of a token."""
        return self.num_value_heads * self.value_dim

    @property
    def num_channels(self) -> int:
        """Of the convolution."""
        return 2 * self.key_size + self.value_size

    @property
    def matrix(self) -> Shape:
        """The recurrent state of a sequence."""
        return (self.num_value_heads, self.key_dim, self.value_dim)

    @property
    def record_size(self) -> int:
        """Numbers that a token needs to be taken through the states again."""
        return self.num_channels + 2 * self.num_value_heads

    def unsharable(self, num_ranks: int) -> str | None:
        """What of the layer so many ranks cannot share; None where they can."""
        return f"{self.num_key_heads} recurrent key heads" if self.num_key_heads % num_ranks else None

    def local(self, num_ranks: int) -> "DeltaNetConfig":
        """Of one rank: some key heads, with the value heads that they serve."""
        keys, values = self.num_key_heads // num_ranks, self.num_value_heads // num_ranks
        return replace(self, num_key_heads=keys, num_value_heads=values)

    def runs(self) -> dict[str, Sequence[Run]]:
        """How tensors are split, by name: out_proj.weight by input, others by output."""
        keys = Run(self.num_key_heads, self.key_dim)
        values, heads = Run(self.num_value_heads, self.value_dim), Run(self.num_value_heads, 1)
        qkvz = Run(self.num_key_heads, (self.num_channels + self.value_size) // self.num_key_heads)
        strengths_and_decays = Run(self.num_key_heads, 2 * self.num_value_heads // self.num_key_heads)
        return {
            "in_proj_qkvz.weight": [qkvz],
            "in_proj_ba.weight": [strengths_and_decays],
            "in_proj_qkv.weight": [keys, keys, values],
            "in_proj_z.weight": [values],
            "in_proj_b.weight": [heads],
            "in_proj_a.weight": [heads],
            "conv1d.weight": [keys, keys, values],
            "A_log": [heads],
            "dt_bias": [heads],
            "out_proj.weight": [values],
        }

    def tensors(self, hidden_size: int) -> dict[str, Shape]:
        """All tensors of the layer, by name within it."""
        shapes: dict[str, Shape] = {}
        if self.grouped:
            shapes["in_proj_qkvz.weight"] = (self.num_channels + self.value_size, hidden_size)
            shapes["in_proj_ba.weight"] = (2 * self.num_value_heads, hidden_size)
        else:
            sizes = {"qkv": self.num_channels, "z": self.value_size, "b": self.num_value_heads}
            shapes |= {f"in_proj_{part}.weight": (size, hidden_size) for part, size in sizes.items()}
            shapes["in_proj_a.weight"] = (self.num_value_heads, hidden_size)
        return shapes | {
            "conv1d.weight": (self.num_channels, 1, self.width),
            "A_log": (self.num_value_heads,),
            "dt_bias": (self.num_value_heads,),
            "norm.weight": (self.value_dim,),
            "out_proj.weight": (hidden_size, self.value_size),
        }


@dataclass(frozen=True, slots=True)
class Mamba2Config:
    """A Mamba 2 mixer: a short convolution over inputs, keys and queries, the scan, and a gate, maybe with a norm."""

    num_heads: int
    head_dim: int
    num_groups: int
    state_size: int
    width: int  # of the convolution
    convolution_bias: bool
    bias: bool  # of the projection in
    output_bias: bool
    normed: bool  # the norm is over each group's heads together
    gate_first: bool
    least_step: float
    most_step: float
    name: str = "mamba"

    @property
    def size(self) -> int:
        """Of all inputs of a token."""
        return self.num_heads * self.head_dim

    @property
    def num_channels(self) -> int:
        """Of the convolution."""
        return self.size + 2 * self.num_groups * self.state_size

    @property
    def matrix(self) -> Shape:
        """The recurrent state of a sequence."""
        return (self.num_heads, self.state_size, self.head_dim)

    @property
    def record_size(self) -> int:
        """Numbers that a token needs to be taken through the states again."""
        return self.num_channels + self.num_heads

    def unsharable(self, num_ranks: int) -> str | None:
        """What of the layer so many ranks cannot share; None where they can. Fewer groups of keys and queries than
        ranks are kept by several each, unless a norm needs whole groups of heads."""
        if self.num_heads % num_ranks:
            return f"{self.num_heads} Mamba heads"
        splits = self.num_groups % num_ranks == 0
        if not splits and (self.normed or num_ranks % self.num_groups):
            return f"{self.num_groups} groups of Mamba heads"
        return None

    def local(self, num_ranks: int) -> "Mamba2Config":
        """Of one rank."""
        return replace(self, num_heads=self.num_heads // num_ranks, num_groups=max(1, self.num_groups // num_ranks))

    def runs(self) -> dict[str, Sequence[Run]]:
        """How tensors are split, by name: out_proj.weight by input, others by output."""
        inputs, heads = Run(self.num_heads, self.head_dim), Run(self.num_heads, 1)
        groups = Run(self.num_groups, self.state_size)
        projected, convolved = [inputs, inputs, groups, groups, heads], [inputs, groups, groups]
        return {
            "in_proj.weight": projected,
            "in_proj.bias": projected,
            "conv1d.weight": convolved,
            "conv1d.bias": convolved,
            "A_log": [heads],
            "D": [heads],
            "dt_bias": [heads],
            "norm.weight": [inputs],
            "out_proj.weight": [inputs],
        }

    def tensors(self, hidden_size: int) -> dict[str, Shape]:
        """All tensors of the layer, by name within it."""
        num_outputs = self.size + self.num_channels + self.num_heads
        shapes: dict[str, Shape] = {"in_proj.weight": (num_outputs, hidden_size)}
        shapes |= {"in_proj.bias": (num_outputs,)} if self.bias else {}
        shapes["conv1d.weight"] = (self.num_channels, 1, self.width)
        shapes |= {"conv1d.bias": (self.num_channels,)} if self.convolution_bias else {}
        shapes |= dict.fromkeys(("A_log", "D", "dt_bias"), (self.num_heads,))
        shapes |= {"norm.weight": (self.size,)} if self.normed else {}
        shapes["out_proj.weight"] = (hidden_size, self.size)
        return shapes | ({"out_proj.bias": (hidden_size,)} if self.output_bias else {})


@dataclass(frozen=True, slots=True)
class ShortConvolutionConfig:
    """A short convolution of gated inputs, itself gated."""

    num_channels: int
    width: int
    bias: bool  # of the convolution and both projections
    name: str = "conv"

    @property
    def matrix(self) -> None:
        """No state but the convolution's."""
        return

    @property
    def record_size(self) -> int:
        """Numbers that a token needs to be taken through the states again."""
        return self.num_channels

    def unsharable(self, num_ranks: int) -> str | None:
        """What of the layer so many ranks cannot share; None where they can."""
        return f"convolutions of {self.num_channels:,} channels" if self.num_channels % num_ranks else None

    def local(self, num_ranks: int) -> "ShortConvolutionConfig":
        """Of one rank."""
        return replace(self, num_channels=self.num_channels // num_ranks)

    def runs(self) -> dict[str, Sequence[Run]]:
        """How tensors are split, by name: out_proj.weight by input, others by output."""
        channels = Run(self.num_channels, 1)
        return {
            "in_proj.weight": [channels] * 3,
            "in_proj.bias": [channels] * 3,
            "conv.weight": [channels],
            "conv.bias": [channels],
            "out_proj.weight": [channels],
        }

    def tensors(self, hidden_size: int) -> dict[str, Shape]:
        """All tensors of the layer, by name within it."""
        weights: dict[str, Shape] = {
            "in_proj": (3 * self.num_channels, hidden_size),
            "conv": (self.num_channels, 1, self.width),
            "out_proj": (hidden_size, self.num_channels),
        }
        shapes = {f"{name}.weight": shape for name, shape in weights.items()}
        return shapes | ({f"{name}.bias": shape[:1] for name, shape in weights.items()} if self.bias else {})


RecurrentConfig = DeltaNetConfig | Mamba2Config | ShortConvolutionConfig


def state_size_bytes(config: RecurrentConfig, item_bytes: int) -> int:
    """What a sequence's state takes in one layer: the convolution's last inputs, and the matrix in float32."""
    window = (config.width - 1) * config.num_channels * item_bytes
    return window if config.matrix is None else window + 4 * math.prod(config.matrix)


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Constants that a model's products are multiplied by."""

    attention_in: float
    attention_out: float
    key: float
    mamba_in: float
    mamba_out: float
    mamba_parts: tuple[float, float, float, float, float]  # gate, inputs, keys, queries, steps
    mlp_gate: float
    mlp_down: float
