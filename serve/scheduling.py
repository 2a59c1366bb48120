"""What the scheduler process does: builds the model, the cache and the scheduler, and runs the loop."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from corymb.cache.cache import Cache
from corymb.cache.writes import HostCopies
from corymb.kernels.select import Wish
from corymb.models.architectures import read_config
from corymb.models.build import Built, RunnerOptions, build
from corymb.models.cuda_options import CudaOptions
from corymb.models.grammar_backends import Backend, make_backend
from corymb.models.matchers import BackgroundMatchers
from corymb.models.meeting import Meeting, Ranks
from corymb.models.progress import bars
from corymb.models.second_tier import DEFAULT_RATIO, SecondTier
from corymb.models.speculation import Speculation
from corymb.scheduler.agreement import Agreement, no_check
from corymb.scheduler.constraint import Matchers
from corymb.scheduler.door import Limits
from corymb.scheduler.loop import Loop
from corymb.scheduler.messages import Output, Reply, Stage, Stats, Step, ToScheduler
from corymb.scheduler.plan import Runner, StepPlan, StepResult
from corymb.scheduler.scheduler import Scheduler
from corymb.serve.childhood import Parent, Pulse, start_heartbeat
from corymb.serve.children import ChildOptions
from corymb.serve.config import MemoryOptions, ServeConfig
from corymb.serve.failpoints import Failpoints
from corymb.serve.garbage import settle
from corymb.serve.lockstep import alone, blaming_the_dead, follow, lead
from corymb.serve.profiling import ProfiledPort, Profiling
from corymb.serve.speculation import make_speculation, make_windows
from corymb.serve.storage import open_storage
from corymb.serve.transport import DETOKENIZER, SCHEDULER, Inbox, Outbox, address
from corymb.serve.vocabulary import read_vocabulary


def work(options: ChildOptions, parent: Parent, rank: int) -> None:
    """Builds everything and runs until the main process ends this one."""
    sockets, pulse, config = Path(options.sockets), Pulse(), options.config
    failpoints = Failpoints(parent.name, config.runtime.failpoints)
    start_heartbeat(parent.name, sockets, pulse)
    with ExitStack() as stack, blaming_the_dead():
        own_port = _port(stack, options, parent, pulse) if rank == 0 else None
        _tell_imports(Path(options.model_folder), config, parent)
        ranks = _meet(sockets, config, parent, rank)
        built = _build(Path(options.model_folder), config, parent, ranks)
        runner = FailingRunner(built.runner, failpoints) if failpoints.any else built.runner
        if own_port is None:
            assert ranks is not None, "rank 0 is always there"
            line = follow(stack, ranks, sockets, runner, pulse, lost_message=failpoints.lost_message)
        else:
            line = alone(own_port, runner) if ranks is None else lead(stack, ranks, own_port, runner)
        windows = None
        if built.num_drafts is not None:
            wishes = config.speculative
            how = f"{wishes.speculative_algorithm}, up to {built.num_drafts} a row and step, {wishes.verify_mode}"
            with parent.stage("drafts", how):
                # With the line's runner, what steps cost is what they cost rank 0.
                windows = make_windows(wishes, replace(built, runner=line.runner), leads=rank == 0)
        storage = None
        if config.memory.hicache_storage_backend is not None:
            with parent.stage("storage"):
                storage = open_storage(config, Path(options.model_folder), built, failpoints)
        with parent.stage("scheduler"):
            limits = Limits(built.vocab_size, built.context_length, built.eos_ids, built.can_embed)
            scheduler = Scheduler(
                config.scheduler,
                Cache(built.cache_config, storage),
                limits,
                matchers=_matchers(options, limits),
                windows=windows,
                condemn=line.condemn,
                clock=line.clock,
            )
            failpoints.at_start()
        parent.ready(_info(built))
        agree = Agreement(ranks.group("plans").exchange, rank) if ranks and config.parallel.check_plans else no_check
        Loop(scheduler, line.runner, line.port, overlap_depth=config.scheduler.overlap_depth, agree=agree).run()


def _port(stack: ExitStack, options: ChildOptions, parent: Parent, pulse: Pulse) -> ProfiledPort:
    sockets = Path(options.sockets)
    inbox = stack.enter_context(Inbox[ToScheduler](address(sockets, SCHEDULER), ToScheduler))
    detokenizer = stack.enter_context(Outbox(address(sockets, DETOKENIZER), bounded=True))
    profiling = Profiling(Path(options.config.model.cache_dir) / "profiles", parent.name)
    return ProfiledPort(Port(inbox, parent, detokenizer, pulse), profiling)


def _meet(sockets: Path, config: ServeConfig, parent: Parent, rank: int) -> Ranks | None:
    """Waits for the other ranks, if there are any."""
    parallel, runtime = config.parallel, config.runtime
    if parallel.tp_size == 1:
        return None
    meeting = Meeting(
        rank=rank,
        size=parallel.tp_size,
        local_size=parallel.local_size,
        place=sockets / "ranks" if parallel.nnodes == 1 else parallel.place,
        start_timeout_s=runtime.startup_timeout_s,
        step_timeout_s=runtime.startup_timeout_s + runtime.watchdog_timeout_s,
    )
    with parent.stage("ranks"):
        return Ranks(meeting)


def _info(built: Built) -> dict[str, int | float | str | bool | None]:
    return {
        "max_total_num_tokens": built.max_total_num_tokens,
        "page_size": built.cache_config.page_size,
        "weights_bytes": built.weights_bytes,
        "pools_bytes": built.pools_bytes,
        "device": built.device,
        "dtype": built.dtype,
    }


class Port:
    """The scheduler's end of the sockets."""

    def __init__(self, inbox: Inbox[ToScheduler], parent: Parent, detokenizer: Outbox, pulse: Pulse) -> None:
        self._inbox = inbox
        self._parent = parent
        self._detokenizer = detokenizer
        self._pulse = pulse

    def receive(self, timeout_s: float) -> list[ToScheduler]:
        """What has arrived; waits for it up to `timeout_s`. Called once a turn of the loop."""
        if timeout_s > 0:
            self._pulse.rest()
        messages = self._inbox.receive(timeout_s)
        self._pulse.work()
        return messages

    def send_step(self, outputs: list[Output]) -> None:
        """Sends a step's outputs on their way to the clients."""
        self._detokenizer.send(Step(outputs))

    def send(self, message: Stats | Reply) -> None:
        """Tells the main process something."""
        self._parent.send(message)
        if isinstance(message, Stats):  # once a second, and before falling idle
            settle()


class FailingRunner:
    """A runner that fails when a failpoint says so."""

    def __init__(self, runner: Runner, failpoints: Failpoints) -> None:
        self._runner = runner
        self._failpoints = failpoints

    def launch(self, plan: StepPlan) -> StepResult:
        """Queues one step, unless it is to fail."""
        self._failpoints.at_step()
        return self._runner.launch(plan)

    def copy(self, copies: HostCopies) -> None:
        """Passes copies on."""
        self._runner.copy(copies)

    def close(self) -> None:
        """Closes the runner behind it."""
        self._runner.close()


def _matchers(options: ChildOptions, limits: Limits) -> Matchers | None:
    name = options.config.runtime.grammar_backend
    if name == "auto" or name == "none":  # noqa: PLR1714 - type checkers follow this
        return None

    def make() -> Backend:
        folder = Path(options.tokenizer_folder)
        return make_backend(name, read_vocabulary(folder, vocab_size=limits.vocab_size, eos_ids=limits.eos_ids))

    return BackgroundMatchers(make)


def _tell_imports(folder: Path, config: ServeConfig, parent: Parent) -> None:
    num_threads = max(1, torch.get_num_threads() // config.parallel.local_size)
    if read_config(folder).decoder is None:
        num_threads = 1  # what the test models compute is too small to share: threads would only wait for each other
    torch.set_num_threads(num_threads)
    detail = f"torch {torch.__version__}, {num_threads} threads"
    parent.send(Stage(parent.name, "imports", parent.imports_s, detail))


def _build(folder: Path, config: ServeConfig, parent: Parent, ranks: Ranks | None) -> Built:
    def on_stage(name: str, seconds: float | None, detail: str) -> None:
        parent.send(Stage(parent.name, name, seconds, detail))

    with bars() as show:
        leads = ranks is None or ranks.meeting.rank == 0
        return build(
            _runner_options(folder, config, ranks),
            on_stage,
            on_progress=lambda done, total: show("  weights", done, total) if leads else None,
        )


def _runner_options(folder: Path, config: ServeConfig, ranks: Ranks | None) -> RunnerOptions:
    return RunnerOptions(
        folder=folder,
        device=config.runtime.device,
        dtype=config.model.dtype,
        load_format=config.model.load_format,
        quantization=config.model.quantization,
        context_length=config.model.context_length,
        max_running_requests=config.scheduler.max_running_requests,
        max_total_tokens=config.memory.max_total_tokens,
        mem_fraction_static=config.memory.mem_fraction_static,
        page_size=config.memory.page_size,
        sliding_ratio=config.memory.swa_full_tokens_ratio,
        state_ratio=config.memory.mamba_full_memory_ratio,
        max_states=config.memory.max_mamba_cache_size,
        state_interval=config.memory.mamba_track_interval,
        max_states_per_path=config.memory.mamba_max_states_per_path,
        eviction=config.memory.radix_eviction_policy,
        eviction_slack=config.memory.radix_eviction_slack,
        enable_prefix_cache=not config.memory.disable_radix_cache,
        second_tier=_second_tier(config.memory),
        kv_cache_dtype=config.gpu.kv_cache_dtype,
        speculation=_speculation(folder, config),
        ranks=ranks,
        cuda=_cuda_options(config, 0 if ranks is None else ranks.meeting.rank),
    )


def _speculation(folder: Path, config: ServeConfig) -> Speculation | None:
    target = read_config(folder)
    return make_speculation(config.speculative, target, config.model.context_length or target.context_length)


def _second_tier(memory: MemoryOptions) -> SecondTier | None:
    if not memory.enable_hierarchical_cache:
        return None
    size_gb = memory.hicache_size
    return SecondTier(
        ratio=memory.hicache_ratio or DEFAULT_RATIO,
        size_bytes=None if size_gb is None else int(size_gb * 1e9),
        policy=memory.hicache_write_policy or "write_through",
    )


def _cuda_options(config: ServeConfig, rank: int) -> CudaOptions:
    gpu, scheduler = config.gpu, config.scheduler
    most = scheduler.max_prefill_tokens
    chunk = min(scheduler.chunked_prefill_size or most, most)
    longest = scheduler.chunked_prefill_size or config.model.context_length or 0
    return CudaOptions(
        index=config.parallel.gpu_of(rank),
        attention=Wish(
            both=gpu.attention_backend,
            prefill=gpu.prefill_attention_backend,
            decode=gpu.decode_attention_backend,
            deterministic=gpu.enable_deterministic_inference,
        ),
        graph_max_tokens=min(gpu.graph_tokens, scheduler.max_running_requests),
        prefill_graph_max_tokens=chunk if gpu.captures_prefill else 0,
        max_step_tokens=max(longest, most) + scheduler.max_running_requests,
    )
