"""Loads a model: from a folder's safetensors, or with invented weights."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from corymb.kernels.operations import Operations
from corymb.kernels.recurrence import Recurrence
from corymb.kernels.torch_operations import TorchOperations
from corymb.kernels.torch_recurrence import TorchRecurrence
from corymb.models.config import DecoderConfig, ModelConfig
from corymb.models.decoder import Decoder
from corymb.models.deepseek import build_deepseek
from corymb.models.errors import UnsupportedModel
from corymb.models.gemma import build_gemma
from corymb.models.group import ALONE, Group
from corymb.models.headers import check_tensors, read_headers, weights_size_bytes
from corymb.models.inventory import as_stored, draft_layers, expected_tensors
from corymb.models.layers import Parts, Storage
from corymb.models.llama import build_llama
from corymb.models.makers import Makers, makers_for
from corymb.models.multiplied import MultipliedWeights
from corymb.models.mxfp4 import Mxfp4Weights
from corymb.models.packed import packed_names, unpacked
from corymb.models.precision import DType, Precision, WeightType
from corymb.models.share import Share, check_split, cut_of, local_config
from corymb.models.weights import CheckpointWeights, DummyWeights, Progress, Weights, size_bytes

__all__ = ["LoadFormat", "load_model", "weights_size_bytes"]

CPU = torch.device("cpu")
TORCH_DTYPES: dict[DType, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}

LoadFormat = Literal["auto", "safetensors", "dummy"]

FAMILIES: dict[str, Callable[[Parts], Decoder]] = {
    "llama": build_llama,
    "gemma": build_gemma,
    "deepseek": build_deepseek,
}


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a model's tensors come and in what form they are kept."""

    dtype: torch.dtype = torch.float32  # of what is computed
    weights: WeightType | None = None  # None: as `dtype`
    device: torch.device = CPU
    load_format: LoadFormat = "auto"
    operations: Operations = field(default_factory=TorchOperations)
    recurrence: Recurrence = field(default_factory=TorchRecurrence)
    makers: Makers | None = None  # None: what suits device and types
    group: Group = ALONE  # the ranks that share the model

    @property
    def storage(self) -> Storage:
        """How weights are kept."""
        names: dict[torch.dtype, WeightType] = {dtype: name for name, dtype in TORCH_DTYPES.items()}
        weights = self.weights or names[self.dtype]
        embedding = TORCH_DTYPES[Precision("float32", weights).embedding]
        return Storage(self.dtype, embedding, self.makers or makers_for(self.device, self.dtype, weights))


def load_model(
    folder: Path, config: ModelConfig, options: LoadOptions, *, on_progress: Progress = lambda _: None
) -> Decoder:
    """Builds the model of a folder. `on_progress` hears of bytes read, `weights_size_bytes(folder)` in all.

    Raises UnsupportedModel and BrokenModel before any weights are read.
    """
    decoder = config.decoder
    if decoder is None:
        raise UnsupportedModel(f"{config.architecture} has no weights to load.")
    share = Share(options.group.rank, options.group.size)
    check_split(decoder, config.architecture, share.size)
    cuts = partial(cut_of, decoder=decoder, share=share)

    if options.load_format == "dummy":
        invented = DummyWeights(expected_tensors(decoder), options.dtype, options.device, cuts=cuts)
        return _build(decoder, share, invented, options)
    stored = read_headers(folder)
    decoder = as_stored(decoder, stored)
    check_split(decoder, config.architecture, share.size)
    for name in stored:  # raises for a tensor that cannot be cut
        cuts(name)
    check_tensors(unpacked(stored, folder), expected_tensors(decoder), folder, ignored=draft_layers(decoder))
    with CheckpointWeights(stored, options.device, on_progress, cuts=cuts) as weights:
        return _build(decoder, share, Mxfp4Weights(weights, packed_names(stored)), options)


def read_size_bytes(folder: Path, decoder: DecoderConfig, share: Share) -> int:
    """What a rank reads of a model folder's tensors."""
    ignored = draft_layers(decoder)
    read = {name: stored for name, stored in read_headers(folder).items() if not name.startswith(ignored)}
    return sum(size_bytes(stored, cut_of(name, decoder, share)) for name, stored in read.items())


def _build(decoder: DecoderConfig, share: Share, weights: Weights, options: LoadOptions) -> Decoder:
    local = local_config(decoder, share)
    if decoder.multipliers is not None:
        weights = MultipliedWeights(weights, local, decoder.multipliers)
    parts = Parts(
        decoder=local,
        weights=weights,
        operations=options.operations,
        recurrence=options.recurrence,
        storage=options.storage,
        group=options.group,
        vocab_size=decoder.vocab_size,
    )
    return FAMILIES[decoder.family](parts)
