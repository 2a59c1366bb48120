"""A GPU's runner that speculates, in the real scheduler's loop, beside a CPU's."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import random_drafts
import torch
from by_loop import FakePort
from guarded import Guarded
from safetensors.torch import save_file

from corymb.cache.cache import Cache
from corymb.cache.config import CacheConfig
from corymb.kernels.select import Wish
from corymb.kernels.torch_operations import TorchOperations
from corymb.models.architectures import read_config
from corymb.models.build import RunnerOptions, build
from corymb.models.cuda_build import CudaParts, make_device
from corymb.models.cuda_options import CudaOptions
from corymb.models.cuda_runner import CudaRunner
from corymb.models.errors import UnsupportedModel
from corymb.models.inventory import expected_tensors
from corymb.models.load import LoadOptions, load_model
from corymb.models.speculation import Drafting, Speculation
from corymb.scheduler.config import SchedulerConfig
from corymb.scheduler.door import Limits
from corymb.scheduler.loop import Loop
from corymb.scheduler.messages import Generate, Grammar, Learn, LogprobOptions, Sampling
from corymb.scheduler.plan import Runner, Sampled, StepPlan
from corymb.scheduler.scheduler import Scheduler
from corymb.scheduler.windows import WindowPolicy
from corymb.speculative.allocation import CapAccept, Compact
from corymb.speculative.block_speculation import read_block_speculation
from corymb.speculative.ngram import NgramSpeculation
from corymb.speculative.standalone import read_standalone

NUM_DRAFTS = 3
VOCAB = random_drafts.VOCAB
TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": VOCAB,
    "hidden_size": random_drafts.HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 257,
}
SLIDING = TARGET | {
    "architectures": ["Qwen3ForCausalLM"],
    "head_dim": 8,
    "sliding_window": 9,
    "use_sliding_window": True,
    "max_window_layers": 1,
}
RECURRENT = {
    "gated delta net": TARGET
    | {
        "architectures": ["Qwen3_5ForCausalLM"],
        "head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 8,
    },
    "mamba 2": TARGET
    | {
        "architectures": ["FalconH1ForCausalLM"],
        "head_dim": 8,
        "mamba_d_conv": 4,
        "mamba_d_head": 8,
        "mamba_d_ssm": 32,
        "mamba_d_state": 16,
        "mamba_n_groups": 1,
        "mamba_n_heads": 4,
    },
    "short convolution": TARGET
    | {
        "architectures": ["Lfm2ForCausalLM"],
        "block_auto_adjust_ff_dim": False,
        "conv_L_cache": 3,
        "layer_types": ["conv", "full_attention"],
        "norm_eps": 1e-5,
    },
}
LAYERS = [-1, 0]  # of the target, that drafts look at
TAKES_TURNS = Grammar("ebnf", "even and odd tokens")
WARM = {"temperature": 60.0}  # so flat that most of what is drafted with the target's noise is accepted
# The first three say what they say without drafts; there are more of them than rows.
REQUESTS: list[dict[str, object]] = [
    WARM | {"seed": 7, "seeded": True},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "min_new_tokens": 4, "logit_bias": {257: 9.0, 30: 1.5}},
    {"grammar": TAKES_TURNS},
    WARM | {"seed": 5, "top_k": 90, "top_p": 0.9},
    WARM | {"seed": 6, "presence_penalty": 0.5, "min_p": 0.01},
    {"logit_bias": {30: 100.0}},  # an n-gram knows what comes next
]


class TakingTurns:
    """Allows even token ids, then odd ones, and so on."""

    def __init__(self) -> None:
        self.count, self.is_over = 0, False

    def accept(self, token_id: int) -> bool:
        allowed = token_id % 2 == self.count % 2
        self.count += allowed
        return allowed

    def fill(self, bits: np.ndarray) -> None:
        bits[:] = 0x55555555 if self.count % 2 == 0 else -0x55555556

    def rollback(self, count: int) -> None:
        self.count -= count


class Matchers:
    """Of one grammar."""

    def learn(self, grammar: Grammar, compiled: bytes) -> None:
        pass

    def learnt(self, grammar: Grammar) -> str:
        return ""

    def knows(self, grammar: Grammar) -> bool:
        return True

    def open(self, grammar: Grammar) -> TakingTurns:
        return TakingTurns()

    def forget(self, grammar: Grammar) -> None:
        pass


class Recorded:
    """Budgets by chance, none and all among them; keeps what came of every step."""

    def __init__(self) -> None:
        self.num_drafts = NUM_DRAFTS
        self.steps: list[tuple[list[int], list[int], list[int]]] = []  # rows, tokens said, drafts verified
        self.confidence: list[np.ndarray] = []
        self._chooser = random.Random(9)

    def open(self, row: int, step: int) -> None:
        pass

    def budget(self, step: int, rows: np.ndarray, starts: np.ndarray, most: np.ndarray) -> int | None:
        return self._chooser.choice([None, None, 4, 0])

    def learn(self, plan: StepPlan, sampled: Sampled) -> None:
        if sampled.drafted is None:
            return
        self.steps.append((plan.rows.tolist(), sampled.counts.tolist(), sampled.drafted.num_verified.tolist()))
        if sampled.drafted.confidence is not None:
            self.confidence.append(sampled.drafted.confidence)

    @property
    def num_accepted(self) -> int:
        return sum(sum(counts) - len(counts) for _, counts, _ in self.steps)


def write_target(folder: Path, config: dict[str, object]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    generator, made = torch.Generator().manual_seed(0), {}
    for name, shape in expected_tensors(read_config(folder).decoder).items():
        noise = 0.3 * torch.randn(tuple(shape), generator=generator)
        made[name] = 1 + noise / 3 if name.endswith("norm.weight") else noise
    save_file(made, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("targets") / "full", TARGET)


def requests(settings: Sequence[dict[str, object]] = REQUESTS, *, count: int = 5) -> list[Generate]:
    """Prompts with a common beginning; logprobs are asked of the second."""
    numbers = np.random.default_rng(3)
    shared, made = numbers.integers(0, 255, 3), []
    for index, one in enumerate(settings):
        prompt = np.concatenate((shared, numbers.integers(0, 255, 2 + 2 * index))).astype(np.int32)
        sampling = Sampling(**({"max_new_tokens": count, "temperature": 0.0, "ignore_eos": True} | one))
        logprobs = LogprobOptions(top=2, token_ids=(4,)) if index == 1 else None
        made.append(Generate(str(index), prompt.tobytes(), sampling, logprobs=logprobs))
    return made


def read_drafts(name: str, folder: Path, target: Path) -> Speculation:
    if name == "NGRAM":
        return NgramSpeculation(NUM_DRAFTS)
    config = read_config(target)
    if name == "STANDALONE":  # the target itself, which is always right
        return read_standalone(target, config, context_length=64, num_drafts=NUM_DRAFTS)
    if name == "DSPARK":
        sliding = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
        named = random_drafts.deepspec(num_target_layers=2, target_layer_ids=LAYERS, **sliding)
        random_drafts.write(folder, named, random_drafts.tensors())
        return read_block_speculation(folder, "DSPARK", config)
    named = random_drafts.dflash(dflash_config={"target_layer_ids": LAYERS, "mask_token_id": 258})
    random_drafts.write(folder, named, random_drafts.tensors(markov=None, confidence=False))
    return read_block_speculation(folder, "DFLASH", config)


class Parts(CudaParts):
    """Without a GPU norms and the like are plain torch: the interpreter takes its time, and other tests cover them."""

    def equip(self, options: LoadOptions) -> LoadOptions:
        equipped = super().equip(options)
        return equipped if torch.cuda.is_available() else replace(equipped, operations=TorchOperations())


def gpu_runner(folder: Path, cache: CacheConfig, speculation: Speculation, graphs: int = 0) -> CudaRunner:
    """Without warm-up: every kernel's first launch is a step's."""
    options = CudaOptions(
        attention=Wish(both="triton"),
        max_step_tokens=128,
        fused_rows=0,
        graph_max_tokens=graphs,
        prefill_graph_max_tokens=8 if graphs else 0,
    )
    gpu, config = Parts(options, make_device()), read_config(folder)
    load = LoadOptions(dtype=torch.float32, device=make_device().device)
    gpu.suit((), speculation)
    model, ends = load_model(folder, config, gpu.equip(load)), frozenset(config.eos_ids)
    drafting = Drafting(speculation, load)
    parts = gpu.parts(model, cache, torch.float32, torch.float32, eos_ids=ends, drafting=drafting)
    return gpu.capture(parts, cache)


def talk(runner: Runner, cache: CacheConfig, asked: Sequence[Generate], windows: WindowPolicy | None) -> FakePort:
    """Runs requests to their ends."""
    return talk_on(runner, cache, [asked], windows)[0]


def talk_on(
    runner: Runner, cache: CacheConfig, rounds: Sequence[Sequence[Generate]], windows: WindowPolicy | None
) -> list[FakePort]:
    """Runs one list of requests after another to their ends."""
    pages, limits = Cache(cache), Limits(VOCAB, cache.context_length, frozenset({257}), False)
    config = SchedulerConfig(max_running_requests=cache.num_rows - 1, chunked_prefill_size=8)
    scheduler = Scheduler(config, pages, limits, matchers=Matchers(), windows=windows)
    ports = []
    for asked in rounds:
        ports.append(FakePort([Learn("grammar", TAKES_TURNS, b""), *asked]))
        loop = Loop(scheduler, runner, ports[-1], overlap_depth=1)
        while ports[-1].requests or not scheduler.is_idle:
            loop.step()
        pages.check()
    runner.close()
    return ports


def on_a_cpu(folder: Path, asked: Sequence[Generate], speculation: Speculation | None) -> tuple[FakePort, Recorded]:
    windows = Recorded()
    options = RunnerOptions(
        folder, device="cpu", dtype="float32", max_running_requests=4, max_total_tokens=200, speculation=speculation
    )
    if "sliding_window" in json.loads((folder / "config.json").read_text()):
        options = replace(options, sliding_ratio=1.0)
    built = build(options, lambda *_: None)
    return talk(built.runner, built.cache_config, asked, windows if speculation else None), windows


def on_a_gpu(
    folder: Path, asked: Sequence[Generate], speculation: Speculation, graphs: int = 0
) -> tuple[FakePort, Recorded]:
    windows, window = Recorded(), json.loads((folder / "config.json").read_text()).get("sliding_window", 0)
    cache = CacheConfig(num_full_tokens=201, num_rows=5, context_length=64)
    if window:
        cache = msgspec.structs.replace(cache, num_sliding_tokens=201, sliding_window=window)
        return talk(gpu_runner(folder, cache, speculation, graphs), cache, asked, windows), windows
    room = msgspec.structs.replace(cache, num_full_tokens=202)
    return talk(Guarded(gpu_runner(folder, room, speculation, graphs)), cache, asked, windows), windows


@pytest.mark.parametrize(
    ("name", "graphs", "kinds"), [("NGRAM", 0, 6), ("STANDALONE", 0, 3), ("DSPARK", 2, 5), ("DFLASH", 0, 2)], ids=str
)
def test_every_kind_of_request_goes_as_on_a_cpu(
    target: Path, tmp_path: Path, name: str, graphs: int, kinds: int
) -> None:
    """Step by step as many drafts are verified and accepted, the draft is as sure of them, and the same is said; and
    nothing is read or written that is another row's."""
    asked, speculation = requests(REQUESTS[:kinds]), replace(read_drafts(name, tmp_path, target), allotment=Compact())
    (here, ours), (there, theirs) = on_a_gpu(target, asked, speculation, graphs), on_a_cpu(target, asked, speculation)
    plain, _ = on_a_cpu(target, asked, None)
    assert ours.steps == theirs.steps
    assert ours.num_accepted > 0
    assert len(ours.confidence) == len(theirs.confidence) == (len(ours.steps) if name == "DSPARK" else 0)
    for mine, other in zip(ours.confidence, theirs.confidence, strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-4)
    for index, request in enumerate(asked):
        assert here.token_ids(request.rid) == there.token_ids(request.rid)
        assert index > 2 or here.token_ids(request.rid) == plain.token_ids(request.rid)
    assert kinds < 3 or [token % 2 for token in here.token_ids("2")] == [0, 1, 0, 1, 0]
    mine, other = ([score for output in port.outputs["1"] for score in output.logprobs] for port in (here, plain))
    assert [one.token_id for one in mine] == here.token_ids("1")
    assert np.allclose([one.logprob for one in mine], [one.logprob for one in other], atol=1e-4)
    assert [[top for top, _ in one.top] for one in mine] == [[top for top, _ in one.top] for one in other]


def test_a_target_with_a_window_and_no_more_accepted_than_allowed(tmp_path: Path) -> None:
    target = write_target(tmp_path / "sliding", SLIDING)
    asked = requests([{}, {}], count=9)
    speculation = replace(read_drafts("STANDALONE", tmp_path, target), allotment=CapAccept())
    (here, ours), (there, theirs) = on_a_gpu(target, asked, speculation), on_a_cpu(target, asked, speculation)
    assert ours.steps == theirs.steps
    assert any(sum(verified) == 6 > 4 == sum(counts) - 2 for _, counts, verified in ours.steps)
    assert [here.token_ids(one.rid) for one in asked] == [there.token_ids(one.rid) for one in asked]


@pytest.mark.parametrize(
    ("kind", "bias", "graphs"),  # with this bias it repeats itself, but not for ever
    [
        ("gated delta net", 9.0, 1),
        pytest.param("mamba 2", 5.0, 0, marks=pytest.mark.gpu),
        pytest.param("short convolution", 7.0, 3, marks=pytest.mark.gpu),
    ],
)
def test_states_go_as_far_as_drafts_were_accepted(tmp_path: Path, kind: str, bias: float, graphs: int) -> None:
    """And whoever goes on from a snapshot on the way, or from the end, goes on from the state that belongs there."""
    target = write_target(tmp_path / "target", RECURRENT[kind])
    asked = requests([{"logit_bias": {30: bias}}, {}], count=9)

    def plainly(turns: Sequence[Sequence[Generate]]) -> list[list[list[int]]]:
        options = RunnerOptions(target, device="cpu", dtype="float32", max_running_requests=2, max_total_tokens=200)
        built = build(options, lambda *_: None)
        ports = talk_on(built.runner, built.cache_config, turns, None)
        return [[port.token_ids(one.rid) for one in asked] for port in ports]

    ((one, other),) = plainly([asked])
    ends = [np.array(tail, np.int32).tobytes() for tail in ([*one, 7], [*other[:6], 7])]
    more = [replaced(request, request.prompt + end, 3) for request, end in zip(asked, ends, strict=True)]
    cache = CacheConfig(num_full_tokens=201, num_states=13, state_interval=4, num_rows=3, context_length=64)
    windows, speculation = Recorded(), replace(read_drafts("NGRAM", tmp_path, target), allotment=Compact())
    drafted = talk_on(gpu_runner(target, cache, speculation, graphs), cache, [asked, more], windows)
    assert [[port.token_ids(each.rid) for each in asked] for port in drafted] == plainly([asked, more])
    assert windows.num_accepted > 0
    assert drafted[1].outputs["0"][0].num_cached_tokens > len(asked[0].prompt) // 4, "the answer left no state"


def replaced(request: Generate, prompt: bytes, count: int) -> Generate:
    sampling = msgspec.structs.replace(request.sampling, max_new_tokens=count)
    return msgspec.structs.replace(request, prompt=prompt, sampling=sampling)


@pytest.mark.parametrize(
    ("config", "wish", "message"),
    [
        (
            {"architectures": ["CorymbHash"], "vocab_size": 264, "max_position_embeddings": 64, "eos_token_id": 257},
            Wish(both="triton"),
            "CorymbHash does not work with --speculative-algorithm",
        ),
        (TARGET, Wish(both="torch"), "torch attention asks the host .* use --decode-attention-backend triton"),
    ],
)
def test_what_asks_the_host_for_lengths_is_refused(
    tmp_path: Path, config: dict[str, object], wish: Wish, message: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked = CudaOptions(attention=wish)
    options = RunnerOptions(tmp_path, device="cuda", max_total_tokens=64, speculation=NgramSpeculation(3), cuda=asked)
    with pytest.raises(UnsupportedModel, match=message):
        build(options, lambda *_: None)


def test_build_warms_every_step_up_and_disturbs_nobody(tmp_path: Path) -> None:
    target = write_target(tmp_path / "small", TARGET | {"num_hidden_layers": 1})
    asked, speculation = (
        requests([{"logit_bias": {30: 100.0}}], count=4),
        NgramSpeculation(NUM_DRAFTS, allotment=Compact()),
    )
    options = RunnerOptions(
        target,
        device="cuda",
        dtype="float32",
        context_length=12,  # too short for a second width of prompts
        max_running_requests=1,
        max_total_tokens=40,
        speculation=speculation,
        cuda=CudaOptions(attention=Wish(both="triton"), max_step_tokens=16),
    )
    built = build(options, lambda *_: None)
    assert built.num_drafts == NUM_DRAFTS
    here = talk(built.runner, built.cache_config, asked, Recorded())
    there, _ = on_a_cpu(target, asked, None)
    assert [here.token_ids(one.rid) for one in asked] == [there.token_ids(one.rid) for one in asked]


@pytest.mark.gpu
@pytest.mark.parametrize("graphs", [0, 4])
@pytest.mark.parametrize("name", ["NGRAM", "STANDALONE", "DSPARK", "DFLASH"])
def test_nothing_waits_for_the_gpu(target: Path, tmp_path: Path, name: str, graphs: int) -> None:
    class Watched:
        """A runner whose launches may not wait."""

        def __init__(self, runner: CudaRunner, first: int) -> None:
            self.runner, self.left = runner, first

        def launch(self, plan: StepPlan) -> object:
            self.left -= 1
            if self.left > 0:  # everything is compiled and every buffer has grown
                return self.runner.launch(plan)
            torch.cuda.set_sync_debug_mode("error")
            try:
                return self.runner.launch(plan)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        def close(self) -> None:
            self.runner.close()

    speculation = replace(read_drafts(name, tmp_path, target), allotment=Compact())
    cache = CacheConfig(num_full_tokens=400, num_rows=5, context_length=64)
    asked = [msgspec.structs.replace(one, logprobs=None) for one in requests(REQUESTS, count=30)]
    watched = Watched(gpu_runner(target, cache, speculation, graphs), 14)
    talk(watched, cache, asked, Recorded())
    assert watched.left < 0
