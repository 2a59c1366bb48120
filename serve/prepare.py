"""Everything that can be known of a model without tensors: checked before any weights are read. Imports no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from corymb.models.architectures import read_config
from corymb.models.config import DecoderConfig, ModelConfig
from corymb.models.headers import check_tensors, read_headers
from corymb.models.inventory import expected_tensors
from corymb.models.memory import host_memory
from corymb.models.precision import ITEM_BYTES, Precision, resolve_precision
from corymb.models.progress import bars
from corymb.models.sizing import PoolRequest, TokenBytes, find_room, size_pools
from corymb.models.source import ModelSource, resolve
from corymb.serve.config import ConfigError, ServeConfig
from corymb.serve.devices import Device, resolve_device


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model that can be served."""

    config: ServeConfig  # with nothing left at "auto"
    source: ModelSource
    model: ModelConfig
    tokenizer_folder: Path
    weights_bytes: int  # in memory

    @property
    def served_name(self) -> str:
        """The name that clients see."""
        return self.config.model.served_model_name or self.source.served_name

    @property
    def context_length(self) -> int:
        """Tokens a request may span."""
        return self.config.model.context_length or self.model.context_length


def prepare(config: ServeConfig) -> Prepared:
    """Finds the model, reads its configuration and checks that it fits. Raises ConfigError, ModelError."""
    options = config.model
    with bars() as on_progress:
        source = resolve(
            options.model_path,
            cache_dir=Path(options.cache_dir),
            revision=options.revision,
            offline=options.offline,
            on_progress=on_progress,
            weights=options.load_format != "dummy",
        )
    model = read_config(source.folder)
    resolved = _resolve(config, model)
    return Prepared(
        config=resolved,
        source=source,
        model=model,
        tokenizer_folder=_tokenizer_folder(config) or source.folder,
        weights_bytes=_check_weights(source.folder, model, resolved),
    )


def _tokenizer_folder(config: ServeConfig) -> Path | None:
    path = config.model.tokenizer_path
    if path is None:
        return None
    return resolve(path, cache_dir=Path(config.model.cache_dir), offline=config.model.offline, weights=False).folder


def _resolve(config: ServeConfig, model: ModelConfig) -> ServeConfig:
    """Decides what was left to the server."""
    length = config.model.context_length or model.context_length
    if length > model.context_length:
        raise ConfigError(f"--context-length {length} is above what the model was made for, {model.context_length}.")
    # Models made for tests have nothing to compute.
    device: Device = resolve_device(config.runtime.device) if model.decoder is not None else "cpu"
    precision = _precision(config, device, model)
    dtype = precision.compute if config.model.quantization else precision.weights
    return msgspec.structs.replace(
        config,
        model=msgspec.structs.replace(config.model, dtype=dtype, context_length=length),
        runtime=msgspec.structs.replace(config.runtime, device=device),
    )


def _precision(config: ServeConfig, device: Device, model: ModelConfig) -> Precision:
    options = config.model
    return resolve_precision(options.dtype, options.quantization, device=_kind(device), saved=model.dtype)


def _kind(device: Device) -> Literal["cpu", "cuda"]:
    return "cuda" if device == "cuda" else "cpu"


def _check_weights(folder: Path, model: ModelConfig, config: ServeConfig) -> int:
    """Raises unless all tensors are there and fit into memory beside the pools; returns what they will take."""
    if model.decoder is None:
        return 0
    expected = expected_tensors(model.decoder)
    if config.model.load_format != "dummy":
        check_tensors(read_headers(folder), expected, folder)
    precision = _precision(config, config.runtime.device, model)
    weights_bytes = precision.weights_bytes(model.decoder, _kind(config.runtime.device))
    if config.runtime.device == "cpu":
        _check_memory(model, config, weights_bytes, _token_bytes(model.decoder, precision))
    return weights_bytes


def _check_memory(model: ModelConfig, config: ServeConfig, weights_bytes: int, cost: TokenBytes) -> None:
    """The scheduler decides on the pools when it has the memory; what cannot work is refused here already."""
    memory = config.memory
    request = PoolRequest(
        context_length=config.model.context_length or model.context_length,
        max_running_requests=config.scheduler.max_running_requests,
        page_size=memory.page_size,
        max_total_tokens=memory.max_total_tokens,
        mem_fraction_static=memory.mem_fraction_static,
    )
    room = find_room(host_memory(), weights_bytes, memory.mem_fraction_static)
    size_pools(cost, model.window, request, room)


def _token_bytes(decoder: DecoderConfig, precision: Precision) -> TokenBytes:
    layer_bytes = 2 * decoder.num_kv_heads * decoder.head_dim * ITEM_BYTES[precision.compute]
    num_sliding = sum(layer.window is not None for layer in decoder.layers)
    return TokenBytes(layer_bytes * (len(decoder.layers) - num_sliding), layer_bytes * num_sliding)
