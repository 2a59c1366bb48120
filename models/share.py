"""Which part of a model one of several ranks keeps. Imports no torch.

Products are split so that each layer's attention and MLP need one sum over the ranks each: queries, keys, values, gates
and ups by output, the products after them by input, those of every expert too. Embedding and head are split by
vocabulary.
"""

import dataclasses
import re
from dataclasses import dataclass
from typing import Literal

from corymb.models.config import DecoderConfig, LayerConfig
from corymb.models.errors import UnsupportedModel
from corymb.models.experts_config import ExpertsConfig
from corymb.models.inventory import EMBEDDING, HEAD
from corymb.models.latent_config import LatentConfig
from corymb.models.packed import BLOCK_NUMBERS
from corymb.models.recurrent_config import Run

FAMILIES = ("llama", "gemma", "deepseek")  # whose layers sum over ranks

_LAYER = re.compile(r"model\.layers\.\d+\.(self_attn|mlp)\.(\w+)_proj\.(weight|bias)")
_OF_LAYER = re.compile(r"model\.layers\.(\d+)\.(\w+)\.(.+)")
_LATENT = re.compile(r"model\.layers\.\d+\.self_attn\.(q|q_b|kv_b|o)_proj\.(weight|bias)")
_STACKED = re.compile(r"model\.layers\.\d+\.(\w+)\.experts\.(gate_up|down)_proj(_bias|_blocks|_scales|)")
_EXPERT = re.compile(r"model\.layers\.\d+\.(\w+)\.experts\.\d+\.(\w+)\.weight")
_SHARED = re.compile(r"model\.layers\.\d+\.(\w+\.\w+)\.(gate|up|down)_proj\.weight")


@dataclass(frozen=True, slots=True)
class Share:
    """One rank of several."""

    rank: int = 0
    size: int = 1

    def of(self, count: int) -> slice:
        """This rank's part of `count` things: equal parts, save that the last ranks may lack some."""
        most = -(-count // self.size)
        return slice(min(self.rank * most, count), min((self.rank + 1) * most, count))


WHOLE = Share()


@dataclass(frozen=True, slots=True)
class Cut:
    """A rank's part of a tensor: pieces of one of its axes, one after another, filled up with zeros to `length`."""

    axis: Literal[0, 1, 2]
    pieces: tuple[slice, ...]
    length: int

    @property
    def num_kept(self) -> int:
        """What is taken along the axis."""
        return sum(piece.stop - piece.start for piece in self.pieces)

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """Of the part of a tensor of this shape."""
        return tuple(self.length if axis == self.axis else size for axis, size in enumerate(whole))


def check_split(decoder: DecoderConfig, architecture: str, size: int) -> None:
    """Raises UnsupportedModel, in one sentence, for a model that so many ranks cannot share."""
    if size == 1:
        return
    if decoder.family not in FAMILIES:
        raise UnsupportedModel(f"{architecture} cannot be split over several ranks; leave --tp-size out.")
    heads, kv_heads = decoder.num_heads, decoder.num_kv_heads
    if heads % size:
        raise UnsupportedModel(_odd(f"{heads} attention heads", size))
    if kv_heads % size and size % kv_heads:
        raise UnsupportedModel(_odd(f"{kv_heads} KV heads", size))
    if decoder.intermediate_size % size:
        raise UnsupportedModel(_odd(f"an MLP of {decoder.intermediate_size:,}", size))
    for odd in {layer.recurrent.unsharable(size) for layer in decoder.layers if layer.recurrent is not None}:
        if odd is not None:
            raise UnsupportedModel(_odd(odd, size))
    experts = decoder.experts
    if experts is not None:
        shared = experts.shared.intermediate_size if experts.shared else 0
        if experts.intermediate_size % size or shared % size:
            raise UnsupportedModel(_odd(f"experts of {experts.intermediate_size:,}", size))
    if (size - 1) * -(-decoder.vocab_size // size) >= decoder.vocab_size:
        raise UnsupportedModel(_odd(f"a vocabulary of {decoder.vocab_size:,}", size))


def _odd(what: str, size: int) -> str:
    return f"The model has {what}, which {size} ranks cannot share evenly; choose another --tp-size."


def local_config(decoder: DecoderConfig, share: Share) -> DecoderConfig:
    """The sizes of one rank's part; fewer KV heads than ranks are kept by several ranks each."""
    if share.size == 1:
        return decoder
    return dataclasses.replace(
        decoder,
        vocab_size=-(-decoder.vocab_size // share.size),
        num_heads=decoder.num_heads // share.size,
        num_kv_heads=max(1, decoder.num_kv_heads // share.size),
        intermediate_size=decoder.intermediate_size // share.size,
        experts=_local_experts(decoder.experts, share.size),
        layers=tuple(_local_layer(layer, share.size) for layer in decoder.layers),
    )


def _local_layer(layer: LayerConfig, size: int) -> LayerConfig:
    return layer if layer.recurrent is None else dataclasses.replace(layer, recurrent=layer.recurrent.local(size))


def _local_experts(experts: ExpertsConfig | None, size: int) -> ExpertsConfig | None:
    if experts is None:
        return None
    shared = experts.shared
    if shared is not None:
        shared = dataclasses.replace(shared, intermediate_size=shared.intermediate_size // size)
    return dataclasses.replace(experts, intermediate_size=experts.intermediate_size // size, shared=shared)


def cut_of(name: str, decoder: DecoderConfig, share: Share) -> Cut | None:
    """What a rank takes of the tensor of that name; None: all of it."""
    if share.size == 1:
        return None
    if name in (EMBEDDING, HEAD):
        return Cut(0, (share.of(decoder.vocab_size),), -(-decoder.vocab_size // share.size))
    if decoder.latent is not None and ".self_attn." in name:
        return _cut_of_latents(name, decoder, decoder.latent, share)
    found = _LAYER.fullmatch(name)
    if found is None:
        return _cut_of_recurrent(name, decoder, share) or _cut_of_sinks_or_expert(name, decoder, share)
    part, kind = found[2], found[3]
    if part in ("q", "k", "v"):
        return _heads(decoder, share, queries=part == "q")
    if part in ("gate", "up"):
        return _even(0, decoder.intermediate_size, share)
    if kind == "bias":
        return _once(0, decoder.hidden_size, share)
    return _even(1, decoder.intermediate_size if part == "down" else decoder.num_heads * decoder.head_dim, share)


def _cut_of_latents(name: str, decoder: DecoderConfig, latent: LatentConfig, share: Share) -> Cut | None:
    """What leads to latents, and an index, every rank has whole; what leads from them to heads is split by head."""
    found = _LATENT.fullmatch(name)
    if found is None:
        return None
    if found[1] == "o":
        values = decoder.num_heads * latent.value_dim
        return _once(0, decoder.hidden_size, share) if found[2] == "bias" else _even(1, values, share)
    of_head = latent.nope_dim + (latent.value_dim if found[1] == "kv_b" else latent.rope_dim)
    return _even(0, decoder.num_heads * of_head, share)


def _cut_of_recurrent(name: str, decoder: DecoderConfig, share: Share) -> Cut | None:
    found = _OF_LAYER.fullmatch(name)
    config = (
        decoder.layers[int(found[1])].recurrent if found is not None and int(found[1]) < len(decoder.layers) else None
    )
    if found is None or config is None or found[2] != config.name:
        return None
    if found[3] == "out_proj.bias":
        return _once(0, decoder.hidden_size, share)
    runs = config.runs().get(found[3])
    if runs is None:
        return None
    begins = [sum(run.length for run in runs[:nth]) for nth in range(len(runs))]
    pieces = tuple(_piece(begin, run, share) for begin, run in zip(begins, runs, strict=True))
    return Cut(
        1 if found[3] == "out_proj.weight" else 0, pieces, sum(int(piece.stop - piece.start) for piece in pieces)
    )


def _piece(begin: int, run: Run, share: Share) -> slice:
    """A rank's part of a run; where there are fewer things than ranks, several keep the same."""
    first = begin + share.rank * run.count // share.size * run.size
    return slice(first, first + max(1, run.count // share.size) * run.size)


def _cut_of_sinks_or_expert(name: str, decoder: DecoderConfig, share: Share) -> Cut | None:
    if name.endswith(".self_attn.sinks"):
        return _even(0, decoder.num_heads, share)
    return _cut_of_expert(name, decoder.experts, decoder.hidden_size, share) if decoder.experts else None


def _cut_of_expert(name: str, experts: ExpertsConfig, hidden_size: int, share: Share) -> Cut | None:
    found = _STACKED.fullmatch(name)
    if found is not None and found[1] == experts.block:
        cut = _cut_of_interleaved if experts.form == "interleaved" else _cut_of_stacked
        return cut(found[2], found[3], experts, hidden_size, share)
    found = _EXPERT.fullmatch(name)
    if found is not None and found[1] == experts.block and found[2] in experts.parts:
        return _even(1 if found[2] == experts.parts[-1] else 0, experts.intermediate_size, share)
    found = _SHARED.fullmatch(name)
    if found is not None and experts.shared is not None and found[1] == f"{experts.block}.{experts.shared.name}":
        return _even(1 if found[2] == "down" else 0, experts.shared.intermediate_size, share)
    return None


def _cut_of_stacked(part: str, kind: str, experts: ExpertsConfig, hidden_size: int, share: Share) -> Cut:
    """Gates stand above ups: a piece of each."""
    inner, own = experts.intermediate_size, share.of(experts.intermediate_size)
    if part == "gate_up":
        return Cut(1, (own, slice(inner + own.start, inner + own.stop)), 2 * inner // share.size)
    return _once(1, hidden_size, share) if kind else _even(2, inner, share)


def _cut_of_interleaved(part: str, kind: str, experts: ExpertsConfig, hidden_size: int, share: Share) -> Cut:
    """Gates and ups stand in turns, so that neighbours of both stay together."""
    inner = experts.intermediate_size
    if part == "gate_up":
        return _even(1 if kind else 2, 2 * inner, share)
    if kind == "_bias":
        return _once(1, hidden_size, share)
    if not kind:
        return _even(1, inner, share)
    if inner // BLOCK_NUMBERS % share.size:
        raise UnsupportedModel(_odd(f"experts of {inner:,} packed in groups of {BLOCK_NUMBERS}", share.size))
    return _even(2, inner // BLOCK_NUMBERS, share)


def _once(axis: Literal[0, 1], count: int, share: Share) -> Cut:
    """Of what is added to the sum over the ranks: one rank adds it."""
    return Cut(axis, (slice(0, count if share.rank == 0 else 0),), count)


def _heads(decoder: DecoderConfig, share: Share, *, queries: bool) -> Cut:
    count = decoder.num_heads if queries else decoder.num_kv_heads
    local = max(1, count // share.size)
    first = share.rank * count // share.size
    size = 2 * decoder.head_dim if queries and decoder.output_gate else decoder.head_dim
    return Cut(0, (slice(first * size, (first + local) * size),), local * size)


def _even(axis: Literal[0, 1, 2], count: int, share: Share) -> Cut:
    return Cut(axis, (share.of(count),), count // share.size)
