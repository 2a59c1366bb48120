"""A target that is only looked at: whole sequences in, features and last hidden states out."""

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from corymb.cache.config import CacheConfig
from corymb.kernels.attention import Attention, KVLayer, RaggedLayout
from corymb.kernels.select import Wish
from corymb.models.batch import lay_out
from corymb.models.blueprint import Blueprint, OnProgress, read_blueprint
from corymb.models.config import DecoderConfig
from corymb.models.cuda_options import CudaOptions
from corymb.models.errors import UnsupportedModel
from corymb.models.features import Capture
from corymb.models.headers import read_headers
from corymb.models.inventory import EMBEDDING, HEAD
from corymb.models.load import LoadOptions
from corymb.models.model import Batch, Model
from corymb.models.placement import Place
from corymb.models.pools import allocate
from corymb.models.precision import resolve_precision
from corymb.models.sequences import NoPrompts
from corymb.models.weights import CheckpointWeights
from corymb.scheduler.plan import Int32
from corymb.speculative.corpus import Corpus

MAX_ROWS = 128


@dataclass(frozen=True, slots=True)
class Shared:
    """What a draft shares with its target."""

    embedding: Tensor  # [V, H]
    head: Tensor  # [V, H], the same tensor where the target ties them


@dataclass(frozen=True, slots=True)
class Looking:
    """How a teacher looks."""

    layers: tuple[int, ...]
    max_tokens: int = 16_384  # at once
    device: Literal["cpu", "cuda"] = "cpu"


@dataclass(frozen=True, slots=True)
class Parts:
    """What a teacher computes with."""

    model: Model
    attention: Attention
    kv: Sequence[KVLayer]
    decoder: DecoderConfig
    dtype: torch.dtype


class Teacher:
    """Owns a target's weights and room for one batch of keys and values."""

    def __init__(self, parts: Parts, looking: Looking) -> None:
        self.device = torch.device(looking.device)
        self.hidden_size = parts.decoder.hidden_size
        self.token_bytes = (len(looking.layers) + 1) * self.hidden_size * parts.dtype.itemsize  # of what `look` gives
        self.dtype = parts.dtype
        self._parts = parts
        self._looking = looking
        self._place = Place(self.device)
        room = looking.max_tokens + 1
        self._to_sliding = torch.arange(room, dtype=torch.int32, device=self.device) if _window(parts.decoder) else None

    def look(self, sequences: Sequence[Int32]) -> tuple[Tensor, Tensor]:
        """Features [T, m * H] and last hidden states [T, H] of all tokens, one sequence behind another."""
        layout = self._layout([len(one) for one in sequences])
        token_ids = self._place(np.concatenate(sequences).astype(np.int64))
        parts, layers = self._parts, self._looking.layers
        shape = (len(token_ids), len(layers) * self.hidden_size)
        capture = Capture(layers, torch.empty(shape, dtype=parts.dtype, device=self.device))
        parts.attention.plan(layout)
        hidden = parts.model.forward(
            Batch(token_ids, layout.positions, layout, parts.attention, parts.kv, NoPrompts(), capture=capture)
        )
        return capture.into, hidden.clone()  # a copy may take part in training, what inference made may not

    def batches(self, corpus: Corpus, picked: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Divides conversations into batches that `look` has room for."""
        first, room = 0, 0
        for place, length in enumerate(corpus.lengths[picked].tolist()):
            if room + length > self._looking.max_tokens or place - first == MAX_ROWS:
                yield picked[first:place]
                first, room = place, 0
            room += length
        yield picked[first:]

    def _layout(self, lengths: Sequence[int]) -> RaggedLayout:
        widths = np.array(lengths, np.int32)
        ends = np.cumsum(widths)
        rows, starts = np.arange(len(widths), dtype=np.int32), np.zeros(len(widths), np.int32)
        # One behind another from slot 1 on; what is behind a row's end is not read.
        table = np.minimum((1 + ends - widths)[:, None] + np.arange(widths.max()), ends[-1]).astype(np.int32)
        place = self._place
        return lay_out(rows, widths, starts, table=place(table), full_to_sliding=self._to_sliding, place=place)


def open_teacher(folder: Path, looking: Looking, on_progress: OnProgress = lambda *_: None) -> Teacher:
    """Loads a target. Raises ModelError."""
    dtype = torch.bfloat16 if looking.device == "cuda" else torch.float32
    load = LoadOptions(dtype, None, torch.device(looking.device))
    name: Literal["bfloat16", "float32"] = "bfloat16" if looking.device == "cuda" else "float32"
    precision = resolve_precision(name, None, device=looking.device, saved=name)
    if looking.device == "cpu":
        blueprint = read_blueprint(folder, precision, load)
        model, decoder = blueprint.load(on_progress), _decoder(blueprint)
        kv = allocate(model.attention_specs, _room(decoder, looking), dtype=dtype, place=Place(load.device))
        return Teacher(Parts(model, blueprint.attention(), kv, decoder, dtype), looking)
    options = CudaOptions(attention=Wish(both="triton"), max_step_tokens=looking.max_tokens)
    # By name: the packages that this module needs are there only with the `gpu` extra.
    gpu = importlib.import_module("corymb.models.cuda_build").make_parts(options)
    blueprint = read_blueprint(folder, precision, gpu.equip(load))
    gpu.suit(blueprint.attention_specs)
    model, decoder = blueprint.load(on_progress), _decoder(blueprint)
    made = gpu.parts(model, _room(decoder, looking), dtype, dtype, eos_ids=blueprint.config.eos_ids)
    return Teacher(Parts(model, made.attention, made.kv, decoder, dtype), looking)


def _decoder(blueprint: Blueprint) -> DecoderConfig:
    decoder = blueprint.config.decoder
    if decoder is None:
        raise UnsupportedModel(f"{blueprint.config.architecture} has no hidden states for a draft to look at.")
    return decoder


def _window(decoder: DecoderConfig) -> int:
    return max((layer.window for layer in decoder.layers if layer.window is not None), default=0)


def _room(decoder: DecoderConfig, looking: Looking) -> CacheConfig:
    window = _window(decoder)
    return CacheConfig(
        num_full_tokens=looking.max_tokens + 1,
        num_sliding_tokens=looking.max_tokens + 1 if window else 0,
        sliding_window=window,
        num_rows=MAX_ROWS + 1,
        context_length=decoder.context_length,
    )


def read_shared(folder: Path, device: torch.device, dtype: torch.dtype) -> Shared:
    """Reads embedding and head of a target. Raises ModelError."""
    stored = read_headers(folder)
    with CheckpointWeights(stored, device, lambda _: None) as weights:
        embedding = weights.take(EMBEDDING).to(dtype, copy=True)
        head = weights.take(HEAD).to(dtype, copy=True) if HEAD in stored else embedding
    return Shared(embedding, head)


class OnlineFeatures:
    """Computes what a lesson needs when it needs it. See lessons.Features."""

    def __init__(self, teacher: Teacher, corpus: Corpus) -> None:
        self._teacher = teacher
        self._corpus = corpus

    def of(self, picked: NDArray[np.int64], length: int) -> tuple[Tensor, Tensor]:
        """See lessons.Features."""
        features: list[Tensor] = []
        hidden: list[Tensor] = []
        for batch in self._teacher.batches(self._corpus, picked):
            lengths = self._corpus.lengths[batch].tolist()
            looked = self._teacher.look([self._corpus.ids_of(index) for index in batch.tolist()])
            features += [_filled(one, length) for one in torch.split(looked[0], lengths)]
            hidden += [_filled(one, length) for one in torch.split(looked[1], lengths)]
        return torch.stack(features), torch.stack(hidden)


class CachedFeatures:
    """Computes everything once and keeps it on the device: a lesson is then a look-up. See lessons.Features."""

    def __init__(self, teacher: Teacher, corpus: Corpus, on_progress: OnProgress = lambda *_: None) -> None:
        total, width = int(corpus.lengths.sum()), teacher.token_bytes // teacher.dtype.itemsize
        self._place = Place(teacher.device)
        self._offsets = self._place(corpus.offsets)
        self._kept = torch.empty(total, width, dtype=teacher.dtype, device=teacher.device)
        self._sizes = [width - teacher.hidden_size, teacher.hidden_size]
        done = 0
        for batch in teacher.batches(corpus, np.arange(len(corpus))):
            features, hidden = teacher.look([corpus.ids_of(index) for index in batch.tolist()])
            end = done + len(hidden)
            torch.cat((features, hidden), dim=1, out=self._kept[done:end])
            done = end
            on_progress(done, total)

    def of(self, picked: NDArray[np.int64], length: int) -> tuple[Tensor, Tensor]:
        """See lessons.Features."""
        first = self._offsets[self._place(picked)]
        at = first[:, None] + torch.arange(length, device=first.device)
        features, hidden = torch.split(self._kept[at.clamp_(max=len(self._kept) - 1)], self._sizes, dim=2)
        return features, hidden


def _filled(tensor: Tensor, length: int) -> Tensor:
    return torch.nn.functional.pad(tensor, (0, 0, 0, length - len(tensor)))
