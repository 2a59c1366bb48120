"""Everything that can be known of a model without tensors: checked before any weights are read. Imports no torch."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from corymb.models.architectures import read_config
from corymb.models.config import DecoderConfig, ModelConfig
from corymb.models.grammar_backends import Name, is_installed
from corymb.models.headers import check_tensors, read_headers
from corymb.models.inventory import as_stored, draft_layers, expected_tensors
from corymb.models.memory import Memory, host_memory
from corymb.models.packed import unpacked
from corymb.models.precision import ITEM_BYTES, Precision, resolve_precision
from corymb.models.progress import bars
from corymb.models.recurrent_config import state_size_bytes
from corymb.models.share import Share, check_split, local_config
from corymb.models.sizing import SLIDING_RATIO, STATE_RATIO, PoolRequest, TokenBytes, find_room, size_pools
from corymb.models.source import ModelSource, resolve
from corymb.scheduler.config import SchedulerConfig
from corymb.serve.config import ConfigError, ServeConfig
from corymb.serve.devices import Gpu, ResolvedDevice, chunk_tokens, find_gpu, resolve_device
from corymb.serve.draft_model import prepare_draft
from corymb.serve.gpu_options import misplaced
from corymb.serve.parallel_options import ParallelOptions


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model that can be served."""

    config: ServeConfig  # with nothing left at "auto"
    source: ModelSource
    model: ModelConfig
    tokenizer_folder: Path
    weights_bytes: int  # in memory
    gpu: Gpu | None  # None: the CPU computes

    @property
    def served_name(self) -> str:
        """The name that clients see."""
        return next(iter(self.config.model.served_model_name), self.source.served_name)

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
    gpu = None if config.runtime.device == "cpu" else find_gpu()
    resolved = msgspec.structs.replace(_resolve(config, model, gpu), speculative=prepare_draft(config, model))
    return Prepared(
        config=resolved,
        source=source,
        model=model,
        tokenizer_folder=_tokenizer_folder(config) or source.folder,
        weights_bytes=_check_weights(source.folder, model, resolved, gpu),
        gpu=gpu if resolved.runtime.device == "cuda" else None,
    )


def _tokenizer_folder(config: ServeConfig) -> Path | None:
    path = config.model.tokenizer_path
    if path is None:
        return None
    return resolve(path, cache_dir=Path(config.model.cache_dir), offline=config.model.offline, weights=False).folder


def _resolve(config: ServeConfig, model: ModelConfig, gpu: Gpu | None) -> ServeConfig:
    """Decides what was left to the server."""
    length = config.model.context_length or model.context_length
    if length > model.context_length:
        raise ConfigError(f"--context-length {length} is above what the model was made for, {model.context_length}.")
    if model.decoder is not None:
        check_split(model.decoder, model.architecture, config.parallel.tp_size)
    device = _device(config, model, gpu)
    _check_gpus(config.parallel, device, gpu)
    for sentence in misplaced(config.gpu, device):
        raise ConfigError(sentence)
    precision = _precision(config, device, model)
    dtype = precision.compute if config.model.quantization else precision.weights
    return msgspec.structs.replace(
        config,
        model=msgspec.structs.replace(config.model, dtype=dtype, context_length=length),
        scheduler=_with_chunk(config, device, gpu),
        runtime=msgspec.structs.replace(
            config.runtime, device=device, default_chunk=False, grammar_backend=_grammar_backend(config)
        ),
    )


def _device(config: ServeConfig, model: ModelConfig, gpu: Gpu | None) -> ResolvedDevice:
    asked = config.runtime.device
    if asked == "auto" and model.decoder is None:
        return "cpu"  # models made for tests have next to nothing to compute
    return resolve_device(asked, gpu)


def _grammar_backend(config: ServeConfig) -> Name:
    asked = config.runtime.grammar_backend
    if asked == "auto":
        return "xgrammar" if is_installed("xgrammar") else "none"
    if not is_installed(asked):
        raise ConfigError(f"--grammar-backend {asked}: the package is not installed; install corymb[grammar].")
    return asked


def _check_gpus(parallel: ParallelOptions, device: ResolvedDevice, gpu: Gpu | None) -> None:
    """Raises ConfigError unless this node has a GPU for each of its ranks."""
    if device == "cpu":
        if parallel.base_gpu_id or parallel.gpu_id_step != 1:
            raise ConfigError("--base-gpu-id and --gpu-id-step need GPUs, and this server computes on the CPU.")
        return
    last = parallel.gpu_of(parallel.local_ranks[-1])
    if gpu is not None and last >= gpu.count:
        raise ConfigError(
            f"The last of {parallel.local_size} ranks would use GPU {last}, and the last GPU here is {gpu.count - 1}; "
            "see --tp-size, --base-gpu-id and --gpu-id-step."
        )


def _with_chunk(config: ServeConfig, device: ResolvedDevice, gpu: Gpu | None) -> SchedulerConfig:
    if not config.runtime.default_chunk:
        return config.scheduler
    chunk = max(chunk_tokens(device, gpu), config.memory.page_size)
    return msgspec.structs.replace(config.scheduler, chunked_prefill_size=chunk)


def _precision(config: ServeConfig, device: ResolvedDevice, model: ModelConfig) -> Precision:
    options = config.model
    return resolve_precision(options.dtype, options.quantization, device=device, saved=model.dtype)


def _check_weights(folder: Path, model: ModelConfig, config: ServeConfig, gpu: Gpu | None) -> int:
    """Raises unless all tensors are there and fit into memory beside the pools; returns what a rank's will take."""
    if model.decoder is None:
        return 0
    if config.model.load_format != "dummy":
        stored = read_headers(folder)
        expected = expected_tensors(as_stored(model.decoder, stored))
        check_tensors(unpacked(stored, folder), expected, folder, ignored=draft_layers(model.decoder))
    device = resolve_device(config.runtime.device, gpu)
    precision = _precision(config, device, model)
    local = local_config(model.decoder, Share(0, config.parallel.tp_size))
    weights_bytes = precision.weights_bytes(local, device)
    if device == "cpu":
        count = config.parallel.local_size
        cost = _token_bytes(local, precision)
        cost = TokenBytes(cost.full * count, cost.sliding * count, cost.state * count)
        _check_memory(model, config, weights_bytes * count, cost)
    elif gpu is not None:
        # How much of it others have taken, the scheduler process sees before it reads any weights.
        find_room(Memory(gpu.total_bytes, gpu.total_bytes), weights_bytes, config.memory.mem_fraction_static)
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
        sliding_ratio=memory.swa_full_tokens_ratio or SLIDING_RATIO,
        state_ratio=memory.mamba_full_memory_ratio or STATE_RATIO,
        max_states=memory.max_mamba_cache_size,
    )
    room = find_room(host_memory(), weights_bytes, memory.mem_fraction_static)
    size_pools(cost, model.window, request, room)


def _token_bytes(decoder: DecoderConfig, precision: Precision) -> TokenBytes:
    item_bytes = ITEM_BYTES[precision.compute]
    full = sum(decoder.cached_numbers(layer) for layer in decoder.layers if layer.window is None)
    sliding = sum(decoder.cached_numbers(layer) for layer in decoder.layers if layer.window is not None)
    recurrent = [layer.recurrent for layer in decoder.layers if layer.recurrent is not None]
    state_bytes = sum(state_size_bytes(one, item_bytes) for one in recurrent)
    return TokenBytes(full * item_bytes, sliding * item_bytes, state_bytes)
