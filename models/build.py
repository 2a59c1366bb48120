"""Builds what a scheduler process runs: configuration, memory, weights, pools, runner, in this order."""

import importlib
import importlib.util
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import torch

from corymb.cache.config import CacheConfig, Eviction
from corymb.kernels.recurrence import GRID
from corymb.models import cuda_memory
from corymb.models.architectures import read_config
from corymb.models.blueprint import Blueprint, OnProgress, read_blueprint
from corymb.models.config import ModelConfig
from corymb.models.costs import Costs, costs_of
from corymb.models.cuda_options import CudaOptions
from corymb.models.errors import UnsupportedModel
from corymb.models.execution import Execution
from corymb.models.gloo_group import GlooGroup
from corymb.models.group import ALONE
from corymb.models.host_pools import HostPools, make_host_pools
from corymb.models.load import TORCH_DTYPES, LoadOptions
from corymb.models.meeting import Ranks
from corymb.models.memory import Memory, host_memory
from corymb.models.model import Model
from corymb.models.placement import Place
from corymb.models.pools import allocate
from corymb.models.precision import Precision, resolve_precision
from corymb.models.records import make_states, num_recorded
from corymb.models.refusals import refuse
from corymb.models.rows import Rows
from corymb.models.runner import CpuRunner
from corymb.models.sampler import Sampler
from corymb.models.second_tier import SecondTier, host_config
from corymb.models.sizing import (
    SLIDING_RATIO,
    STATE_RATIO,
    PoolRequest,
    PoolSizes,
    TokenBytes,
    find_room,
    gib,
    size_pools,
)
from corymb.models.speculation import Drafting, Setting, Speculation
from corymb.models.warm_up import EVERY_SAMPLING, warm_up, warm_up_masks, warm_up_windows, widths_up_to
from corymb.scheduler.plan import Runner

DEFAULT_INTERVAL = 256  # tokens between two snapshots of a state

if TYPE_CHECKING:
    from corymb.models.cuda_build import CudaParts


class OnStage(Protocol):
    """Hears of every stage twice: when it begins, with `seconds` None, and when it is over, with its figures."""

    def __call__(self, name: str, seconds: float | None, detail: str) -> None: ...


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """What the operator asks for. None leaves a choice to the model or to the memory there is."""

    folder: Path
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    load_format: Literal["auto", "dummy"] = "auto"
    quantization: Literal["int8"] | None = None
    context_length: int | None = None
    max_running_requests: int = 256
    max_total_tokens: int | None = None
    mem_fraction_static: float | None = None
    page_size: int = 1
    sliding_ratio: float | None = None
    state_ratio: float | None = None
    max_states: int | None = None
    state_interval: int | None = None
    max_states_per_path: int | None = None
    eviction: Eviction = "lru"
    eviction_slack: int = 1024  # tokens
    enable_prefix_cache: bool = True
    second_tier: SecondTier | None = None
    kv_cache_dtype: Literal["auto", "fp8_e4m3", "fp8_e5m2"] = "auto"
    speculation: Speculation | None = None
    ranks: Ranks | None = None  # that share the model; None: this process computes all of it
    cuda: CudaOptions = field(default_factory=CudaOptions)


@dataclass(frozen=True, slots=True)
class Built:
    """A runner, and what the scheduler and the operator must know of it."""

    runner: Runner
    cache_config: CacheConfig
    vocab_size: int
    context_length: int
    eos_ids: frozenset[int]
    num_drafts: int | None  # most of a row and step; None: nothing drafts
    token_tiers: Sequence[int]  # what steps of rows that decode are filled up to; others are computed as they are
    can_embed: bool  # it has hidden states to pool
    max_total_num_tokens: int  # that requests can use
    weights_bytes: int
    pools_bytes: int
    device: str
    dtype: str
    host: HostPools | None  # of a cache with a second tier


def build(options: RunnerOptions, on_stage: OnStage, *, on_progress: OnProgress = lambda *_: None) -> Built:
    """Builds a runner that is ready for plans. Raises ModelError, before any weights are read where that can be."""
    host = options.ranks.group("tensors") if options.ranks else None
    gpu = _gpu(options, host)
    group = gpu.group if gpu else host or ALONE
    device = gpu.device.device if gpu else torch.device("cpu")
    precision = _precision(options, gpu)
    dtype = TORCH_DTYPES[precision.compute]
    pool_dtype = _pool_dtype(options, gpu, dtype)
    load = LoadOptions(dtype, precision.weights, device, options.load_format, group=group)
    blueprint = read_blueprint(options.folder, precision, gpu.equip(load) if gpu else load)
    refuse(options, blueprint, on_gpu=gpu is not None)
    if gpu:
        gpu.suit(blueprint.attention_specs, options.speculation)
    context_length = _context_length(options, blueprint.config)
    if gpu and host:
        _prepare_sums(gpu, blueprint.config, dtype, on_stage)
    costs = costs_of(blueprint, options.speculation, precision, pool_dtype)
    sizes = _sizes(options, blueprint, context_length, costs, device)
    if host:
        sizes = _least(sizes, host, costs.of_tokens)
    cache_config = _cache_config(options, blueprint, context_length, sizes)
    with _stage(on_stage, "weights", f"{blueprint.config.architecture}, {gib(costs.weights_bytes)}, {precision.name}"):
        model = blueprint.load(on_progress)
    runner: Runner
    if gpu:
        with _stage(on_stage, "pools", _pools_detail(sizes, pool_dtype)):
            parts = gpu.parts(
                model,
                cache_config,
                dtype,
                pool_dtype,
                eos_ids=blueprint.config.eos_ids,
                drafting=Drafting(options.speculation, load) if options.speculation else None,
            )
        with _stage(on_stage, "graphs", gpu.detail):
            runner, second_tier = gpu.capture(parts, cache_config), parts.host
    else:
        with _stage(on_stage, "pools", _pools_detail(sizes, pool_dtype)):
            execution = _execution(model, blueprint, cache_config, load, options.speculation)
            runner, second_tier = CpuRunner(execution), execution.host
    with _stage(on_stage, "warm-up", "every kernel once" if gpu else "first steps, threads for few tokens"):
        longest = min(context_length - 1, options.cuda.max_step_tokens)
        widths = widths_up_to(longest, blueprint.config.decoder)
        _warm(runner, widths, model.vocab_size, options.speculation, tuned=host is None)
    return Built(
        runner=runner,
        cache_config=cache_config,
        vocab_size=model.vocab_size,
        context_length=context_length,
        eos_ids=blueprint.config.eos_ids,
        num_drafts=options.speculation.num_drafts if options.speculation else None,
        token_tiers=gpu.token_tiers(cache_config) if gpu else (),
        can_embed=blueprint.config.decoder is not None,
        max_total_num_tokens=sizes.num_full_tokens,
        weights_bytes=costs.weights_bytes,
        pools_bytes=sizes.size_bytes,
        device="cuda" if gpu else "cpu",
        dtype=precision.weights,
        host=second_tier,
    )


def _warm(
    runner: Runner, widths: Sequence[int], vocab_size: int, speculation: Speculation | None, *, tuned: bool
) -> None:
    """Runs the first steps, a GPU's of these widths. `tuned`: measures a CPU's threads, which several ranks would have
    to agree on."""
    if not isinstance(runner, CpuRunner):
        warm_up(runner, widths, EVERY_SAMPLING)
        warm_up_masks(runner, vocab_size)
        if speculation:
            warm_up_windows(runner, speculation.num_drafts)
        return
    warm_up(runner)
    if tuned:
        runner.tune()


def _prepare_sums(gpu: "CudaParts", config: ModelConfig, dtype: torch.dtype, on_stage: OnStage) -> None:
    """Measures how to sum over the ranks, with a stage of its own, whose figures are known at its end."""
    if config.decoder is None:
        return
    begun_s = time.monotonic()
    on_stage("collectives", None, "")
    detail = gpu.prepare_sums(config.decoder.hidden_size, dtype)
    on_stage("collectives", time.monotonic() - begun_s, detail)


def _gpu(options: RunnerOptions, host: GlooGroup | None) -> "CudaParts | None":
    """What a GPU's runner is made of; None for a CPU's."""
    if options.device == "cpu":
        return None
    if options.device == "auto" and (not torch.cuda.is_available() or read_config(options.folder).decoder is None):
        return None  # models made for tests have next to nothing to compute
    if importlib.util.find_spec("triton") is None:
        raise UnsupportedModel("A GPU needs Triton; install corymb[gpu], or use --device cpu.")
    # By name: the packages that this module needs are there only with the `gpu` extra.
    parts: CudaParts = importlib.import_module("corymb.models.cuda_build").make_parts(options.cuda, options.ranks, host)
    return parts


def _precision(options: RunnerOptions, gpu: "CudaParts | None") -> Precision:
    return resolve_precision(
        options.dtype,
        options.quantization,
        device="cuda" if gpu else "cpu",
        saved=read_config(options.folder).dtype,
    )


def _pool_dtype(options: RunnerOptions, gpu: "CudaParts | None", dtype: torch.dtype) -> torch.dtype:
    if options.kv_cache_dtype == "auto":
        return dtype
    if gpu is None:
        raise UnsupportedModel(f"--kv-cache-dtype {options.kv_cache_dtype} needs a GPU; use auto.")
    if read_config(options.folder).decoder is None:
        raise UnsupportedModel(f"{options.kv_cache_dtype} cannot hold the exact numbers of this model; use auto.")
    return {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}[options.kv_cache_dtype]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _context_length(options: RunnerOptions, config: ModelConfig) -> int:
    if options.context_length is None:
        return config.context_length
    if options.context_length > config.context_length:
        raise UnsupportedModel(
            f"--context-length {options.context_length} is more than the model's {config.context_length} tokens."
        )
    return options.context_length


def _sizes(
    options: RunnerOptions, blueprint: Blueprint, context_length: int, costs: Costs, device: torch.device
) -> PoolSizes:
    share = options.mem_fraction_static
    if share is None and device.type == "cuda" and options.max_total_tokens is None:
        share = cuda_memory.DEFAULT_SHARE
    request = PoolRequest(
        context_length=context_length,
        max_running_requests=options.max_running_requests,
        page_size=options.page_size,
        max_total_tokens=options.max_total_tokens,
        mem_fraction_static=share,
        sliding_ratio=SLIDING_RATIO if options.sliding_ratio is None else options.sliding_ratio,
        state_ratio=STATE_RATIO if options.state_ratio is None else options.state_ratio,
        max_states=options.max_states,
        num_records=(options.max_running_requests + 1) * num_recorded(options.speculation),
    )
    memory = cuda_memory.device_memory(device) if device.type == "cuda" else _host_memory(options.ranks)
    return size_pools(costs.of_tokens, _window(blueprint), request, find_room(memory, costs.weights_bytes, share))


def _host_memory(ranks: Ranks | None) -> Memory:
    """This process's part of the host's memory."""
    memory = host_memory()
    if ranks is None:
        return memory
    count = ranks.meeting.local_size
    return Memory(memory.total_bytes // count, memory.available_bytes // count)


def _least(sizes: PoolSizes, host: GlooGroup, cost: TokenBytes) -> PoolSizes:
    """What every rank has room for: all keep the same tokens."""
    full, sliding, states = host.least([sizes.num_full_tokens, sizes.num_sliding_tokens, sizes.num_states])
    return PoolSizes(full, sliding, states, cost, sizes.num_records)


def _window(blueprint: Blueprint) -> int | None:
    return max((spec.window for spec in blueprint.attention_specs if spec.window is not None), default=None)


def _cache_config(options: RunnerOptions, blueprint: Blueprint, context_length: int, sizes: PoolSizes) -> CacheConfig:
    window = _window(blueprint) or 0
    grid = GRID if blueprint.config.decoder else 1
    states, tier = sizes.num_states, options.second_tier
    return CacheConfig(
        num_full_tokens=sizes.num_full_tokens + options.page_size,
        num_sliding_tokens=sizes.num_sliding_tokens + options.page_size if window else 0,
        sliding_window=window,
        num_states=states + 1 if states else 0,
        state_interval=_state_interval(options, grid) if states else DEFAULT_INTERVAL,
        state_grid=grid,
        max_states_per_path=options.max_states_per_path,
        page_size=options.page_size,
        num_rows=options.max_running_requests + 1,
        has_index=any(spec.index is not None for spec in blueprint.attention_specs),
        context_length=context_length,
        eviction=options.eviction,
        eviction_slack=options.eviction_slack,
        enable_prefix_cache=options.enable_prefix_cache,
        host=host_config(tier, options.page_size, sizes, host_memory()) if tier else None,
    )


def _state_interval(options: RunnerOptions, grid: int) -> int:
    """What the operator asks for, or else: where only whole pages are kept, a request's end seldom is one, and without
    a snapshot at its last page it would leave no state at all."""
    step = math.lcm(options.page_size, grid)
    if options.state_interval is None:
        return step if options.page_size > 1 else DEFAULT_INTERVAL
    if options.state_interval % step:
        raise UnsupportedModel(
            f"--mamba-track-interval {options.state_interval} must be a multiple of {step}, for pages of "
            f"{options.page_size} and a model that computes {grid} tokens at once."
        )
    return options.state_interval


def _execution(
    model: Model, blueprint: Blueprint, config: CacheConfig, load: LoadOptions, speculation: Speculation | None
) -> Execution:
    place, dtype = Place(torch.device("cpu")), load.dtype
    own, drafted = model.attention_specs, speculation.attention_specs if speculation else ()
    specs = [*own, *drafted]
    pools = allocate(specs, config, dtype=dtype, place=place)
    sampler = Sampler(config.num_rows, blueprint.config.eos_ids, place, group=load.group)
    states = make_states(model, config, dtype, place, num_recorded=num_recorded(speculation))
    host = make_host_pools(specs, pools, states.pools if states else (), config, place)
    return Execution(
        model,
        blueprint.attention(),
        pools[: len(own)],
        Rows(config, place),
        sampler,
        states=states,
        host=host,
        speculator=speculation.make(Setting(model, config, pools[len(own) :], load, place)) if speculation else None,
    )


def _pools_detail(sizes: PoolSizes, dtype: torch.dtype) -> str:
    """One line in all, then one a pool where there are several."""
    lines = [f"{sizes.num_full_tokens:,} tokens, {gib(sizes.size_bytes)} in {_name(dtype)}"]
    table = sizes.table()
    return "\n".join(lines + table if len(table) > 1 else lines)


@contextmanager
def _stage(on_stage: OnStage, name: str, detail: str) -> Iterator[None]:
    on_stage(name, None, detail)
    begun_s = time.monotonic()
    yield
    on_stage(name, time.monotonic() - begun_s, detail)
