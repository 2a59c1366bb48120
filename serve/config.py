"""The whole configuration: one frozen tree, resolved once. The only place that reads the environment."""

import argparse
import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from corymb.cache.config import LEAST_STATES, Eviction, WritePolicy
from corymb.scheduler import validity
from corymb.scheduler.config import SchedulerConfig
from corymb.serve import gpu_options, parallel_options, speculative_options
from corymb.serve.devices import Device
from corymb.serve.failpoints import Failpoint, parse_failpoint
from corymb.serve.gpu_options import GpuOptions
from corymb.serve.parallel_options import ParallelOptions
from corymb.serve.speculative_options import SpeculativeOptions

API_KEY_VARIABLE = "CORYMB_API_KEY"
ADMIN_API_KEY_VARIABLE = "CORYMB_ADMIN_API_KEY"
CACHE_VARIABLE = "CORYMB_CACHE"

Section = TypeVar("Section", bound=msgspec.Struct)
LogLevel = Literal["debug", "info", "warning", "error"]
GrammarBackend = Literal["auto", "xgrammar", "llguidance", "none"]
DType = Literal["auto", "float32", "float16", "bfloat16"]


class ConfigError(ValueError):
    """The flags cannot work; the sentence says which and what to do."""


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which model, and how to load it."""

    model_path: str | None = None  # None: the demo model
    tokenizer_path: str | None = None  # None: the model's own
    served_model_name: tuple[str, ...] = ()  # the first is the one that answers carry; none: from the model
    revision: str | None = None
    load_format: Literal["auto", "dummy"] = "auto"
    dtype: DType = "auto"
    quantization: Literal["int8"] | None = None
    context_length: int | None = None  # None: the model's own
    chat_template: str | None = None  # a file or a name; None: the model's own
    tool_call_parser: str = "auto"  # auto: by the chat template
    reasoning_parser: str | None = None  # None: reasoning is content
    cache_dir: str = ""
    offline: bool = False


class HttpConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTP edge. Keys never leave the main process and are never shown."""

    host: str = "127.0.0.1"
    port: int = 30000
    api_key: str | None = None
    admin_api_key: str | None = None
    log_level: LogLevel = "info"
    log_requests: bool = False
    decode_log_interval: int | None = None  # steps
    sampling_defaults: Literal["model", "openai"] = "model"
    max_request_bytes: int = 16 << 20
    incremental_streaming_output: bool = False
    allow_auto_truncate: bool = False
    disable_web: bool = False
    enable_response_store: bool = False


class MemoryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How much memory the pools take and how the tree gives it back."""

    mem_fraction_static: float | None = None  # None: by device
    max_total_tokens: int | None = None  # None: what fits
    page_size: int = 1
    swa_full_tokens_ratio: float | None = None  # None: 0.8
    mamba_full_memory_ratio: float | None = None  # None: 0.9
    max_mamba_cache_size: int | None = None  # None: by the ratio
    mamba_track_interval: int | None = None  # None: 256, or a page where pages are larger than a token
    mamba_max_states_per_path: int | None = None
    radix_eviction_policy: Eviction = "lru"
    radix_eviction_slack: int = 1024  # tokens, for tlru
    disable_radix_cache: bool = False
    enable_hierarchical_cache: bool = False
    hicache_ratio: float | None = None  # host memory for each byte of the device's pools; None: 2.0
    hicache_size: float | None = None  # GB, instead of the ratio
    hicache_write_policy: WritePolicy | None = None  # None: write_through
    hicache_storage_backend: Literal["file"] | None = None
    hicache_storage_dir: str | None = None
    hicache_storage_size: float | None = None  # GB; None: half of what the disk has left


class RuntimeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Devices, processes and their time limits."""

    device: Device = "auto"
    default_chunk: bool = False  # --chunked-prefill-size was not given: the device decides
    random_seed: int | None = None  # of sampling, for requests that bring no seed; None: unpredictable
    watchdog_timeout_s: float = 300.0
    heartbeat_timeout_s: float = 10.0
    drain_timeout_s: float = 30.0
    startup_timeout_s: float = 1800.0
    grammar_backend: GrammarBackend = "auto"
    failpoints: tuple[Failpoint, ...] = ()


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything."""

    model: ModelOptions
    http: HttpConfig
    scheduler: SchedulerConfig
    memory: MemoryOptions
    runtime: RuntimeOptions
    gpu: GpuOptions
    parallel: ParallelOptions = ParallelOptions()
    speculative: SpeculativeOptions = SpeculativeOptions()

    def without_secrets(self) -> "ServeConfig":
        """What other processes and `/get_server_info` may see."""
        return msgspec.structs.replace(self, http=msgspec.structs.replace(self.http, api_key=None, admin_api_key=None))

    def flat(self) -> dict[str, int | float | str | bool | None]:
        """Every setting by its name, without secrets."""
        values: dict[str, int | float | str | bool | None] = {}
        sections: dict[str, dict[str, object]] = msgspec.to_builtins(self.without_secrets())
        for section in sections.values():
            for name, value in section.items():
                values[name] = _shown(value)
        return values


def _shown(value: object) -> int | float | str | bool | None:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return value if value is None or isinstance(value, int | float | str) else str(value)


def from_flags(flags: argparse.Namespace) -> ServeConfig:
    """Makes the configuration of parsed flags. Raises ConfigError."""
    config = ServeConfig(
        model=_model(flags),
        http=_http(flags),
        scheduler=_scheduler(flags),
        memory=_pick(MemoryOptions, flags),
        runtime=_runtime(flags),
        gpu=_pick(GpuOptions, flags),
        parallel=_pick(ParallelOptions, flags),
        speculative=_pick(SpeculativeOptions, flags),
    )
    _check_pairs(config)
    return config


def move_keys_to_environment(arguments: Sequence[str]) -> list[str]:
    """Takes keys out of a command line, where everybody on the machine can read them, into our environment."""
    variables = {"--api-key": API_KEY_VARIABLE, "--admin-api-key": ADMIN_API_KEY_VARIABLE}
    kept: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        flag, equals, value = argument.partition("=")
        if flag in variables:
            os.environ[variables[flag]] = value if equals else next(rest)
        else:
            kept.append(argument)
    return kept


def child_environment(*, one_node: bool = True) -> dict[str, str]:
    """The environment of child processes: ours without the keys."""
    environment = {name: value for name, value in os.environ.items() if name not in _SECRET_VARIABLES}
    environment["TOKENIZERS_PARALLELISM"] = "false"
    if one_node:
        # NCCL's ranks find each other over this.
        environment.setdefault("NCCL_SOCKET_IFNAME", "lo")
    if "OMP_WAIT_POLICY" not in environment:
        # GNU OpenMP's threads wait for each other by spinning, for about a millisecond. On a busy machine the one that
        # is waited for then does not get the core: loading weights took ten times as long. Some 20 µs are enough for
        # the gaps between operations.
        environment.setdefault("GOMP_SPINCOUNT", "10000")
    return environment


_SECRET_VARIABLES = {API_KEY_VARIABLE, ADMIN_API_KEY_VARIABLE}


def _model(flags: argparse.Namespace) -> ModelOptions:
    offline = is_offline(flags.offline)
    folder = cache_folder(flags.cache_dir)
    names = tuple(dict.fromkeys(flags.served_model_name or ()))
    return _pick(ModelOptions, flags, cache_dir=str(folder), offline=offline, served_model_name=names)


def is_offline(wanted: bool) -> bool:
    """Whether nothing may be fetched: by the flag, or by the hub's own variable."""
    return wanted or os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")


def cache_folder(given: str | None) -> Path:
    """Where models are kept, by the flag or the environment."""
    return Path(given or os.environ.get(CACHE_VARIABLE) or _default_cache()).expanduser().resolve()


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "corymb"


def _http(flags: argparse.Namespace) -> HttpConfig:
    api_key = _key("--api-key", flags.api_key, flags.api_key_file, API_KEY_VARIABLE)
    admin = _key("--admin-api-key", flags.admin_api_key, flags.admin_api_key_file, ADMIN_API_KEY_VARIABLE)
    return _pick(HttpConfig, flags, api_key=api_key, admin_api_key=admin)


def _key(flag: str, value: str | None, file: str | None, variable: str) -> str | None:
    """A key from the flag, a file or the environment, in this order."""
    if value is not None and file is not None:
        raise ConfigError(f"Give either {flag} or {flag}-file, not both.")
    if file is not None:
        try:
            value = Path(file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{flag}-file: cannot read {file}: {_reason(error)}.") from error
    key = value if value is not None else os.environ.get(variable)
    if key is not None and not (key and key.isascii() and key.isprintable() and key == key.strip()):
        raise ConfigError(f"The key for {flag} must be printable ASCII without spaces around it, and not empty.")
    return key


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return (error.strerror or "error") if isinstance(error, OSError) else "it is not text"


def _scheduler(flags: argparse.Namespace) -> SchedulerConfig:
    chunk = flags.chunked_prefill_size
    return _pick(
        SchedulerConfig,
        flags,
        chunked_prefill_size=None if chunk == -1 else chunk,
        overlap_depth=0 if flags.disable_overlap_schedule else 1,
    )


def _runtime(flags: argparse.Namespace) -> RuntimeOptions:
    try:
        failpoints = tuple(parse_failpoint(text) for text in flags.test_failpoint)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return _pick(RuntimeOptions, flags, failpoints=failpoints, default_chunk=flags.chunked_prefill_size is None)


def _pick(section: type[Section], flags: argparse.Namespace, **values: object) -> Section:
    """Fills a section from the flags of the same names; flags that were not given keep the section's default."""
    for name in section.__struct_fields__:
        if name not in values and getattr(flags, name, None) is not None:
            values[name] = getattr(flags, name)
    return section(**values)


def _tier_conflicts(config: ServeConfig) -> Iterator[str]:
    memory = config.memory
    given = {
        "--hicache-ratio": memory.hicache_ratio,
        "--hicache-size": memory.hicache_size,
        "--hicache-write-policy": memory.hicache_write_policy,
        "--hicache-storage-backend": memory.hicache_storage_backend,
    }
    named = [flag for flag, value in given.items() if value is not None]
    if not memory.enable_hierarchical_cache:
        if named:
            yield f"{named[0]} is for --enable-hierarchical-cache; give that too, or leave it out."
        return
    if memory.disable_radix_cache:
        yield "--enable-hierarchical-cache keeps prefixes, and --disable-radix-cache forbids it; leave one of them out."
    if memory.hicache_ratio is not None and memory.hicache_size is not None:
        yield "--hicache-ratio and --hicache-size both say how much host memory is used; leave one of them out."
    if config.parallel.tp_size > 1:
        yield "--enable-hierarchical-cache works with one rank; leave it or --tp-size out."


def _storage_conflicts(config: ServeConfig) -> Iterator[str]:
    memory = config.memory
    given = {
        "--hicache-storage-dir": memory.hicache_storage_dir,
        "--hicache-storage-size": memory.hicache_storage_size,
        "--hicache-storage-prefetch-policy": config.scheduler.hicache_storage_prefetch_policy,
    }
    named = [flag for flag, value in given.items() if value is not None]
    if memory.hicache_storage_backend is None and named:
        yield f"{named[0]} is for --hicache-storage-backend file; give that too, or leave it out."
    if memory.hicache_storage_backend is not None and memory.hicache_storage_dir is None:
        yield "--hicache-storage-backend file needs a folder; give --hicache-storage-dir."


def _check_pairs(config: ServeConfig) -> None:
    """Refuses options that exclude each other."""
    conflicts = (
        gpu_options.conflicts(config.gpu),
        parallel_options.conflicts(config.parallel),
        speculative_options.conflicts(config.speculative),
        _tier_conflicts(config),
        _storage_conflicts(config),
    )
    for sentence in chain.from_iterable(conflicts):
        raise ConfigError(sentence)
    scheduler, memory = config.scheduler, config.memory
    chunk = scheduler.chunked_prefill_size
    if chunk is not None and chunk < memory.page_size:
        raise ConfigError(
            f"--chunked-prefill-size {chunk} is below --page-size {memory.page_size}; make it a page at least."
        )
    if scheduler.enable_mixed_chunk and chunk is None and not config.runtime.default_chunk:
        raise ConfigError("--enable-mixed-chunk needs chunks: give --chunked-prefill-size a positive size.")
    try:
        speculates = config.speculative.speculative_algorithm is not None
        validity.validate(scheduler, enable_prefix_cache=not memory.disable_radix_cache, speculates=speculates)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if config.runtime.heartbeat_timeout_s > config.runtime.watchdog_timeout_s:
        raise ConfigError("--heartbeat-timeout must not be above --watchdog-timeout.")
    states = memory.max_mamba_cache_size
    if states is not None and states < LEAST_STATES:
        raise ConfigError(f"--max-mamba-cache-size {states} is too small; {LEAST_STATES} are the least.")
    total = memory.max_total_tokens
    if total is not None and total < memory.page_size:
        raise ConfigError(f"--max-total-tokens {total} does not hold one page of {memory.page_size}.")
