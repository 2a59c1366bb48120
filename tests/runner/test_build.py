"""What the operator asks for becomes a runner with pools of the right size, or one sentence."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from by_hand import GREEDY, Hand, collect, request, text

from corymb.cache.cache import Cache
from corymb.kernels.attention import AttentionSpec
from corymb.models import build as building
from corymb.models.build import Built, RunnerOptions, build
from corymb.models.errors import ModelError, UnsupportedModel
from corymb.models.memory import Memory, host_memory
from corymb.models.placement import Place
from corymb.models.pools import allocate, token_bytes
from corymb.models.sizing import NotEnoughMemory, PoolRequest, TokenBytes, find_room, size_pools

GIB, MIB = 1 << 30, 1 << 20
FULL = AttentionSpec(num_heads=8, num_kv_heads=2, head_dim=64, scale=0.125)
SLIDING = AttentionSpec(num_heads=8, num_kv_heads=2, head_dim=64, scale=0.125, window=512)
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}


def folder_with(tmp_path: Path, config: dict[str, object]) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.fixture
def toy(tmp_path: Path) -> Callable[..., Path]:
    """Makes the folder of a test model."""

    def make(architecture: str, **more: object) -> Path:
        config = {"architectures": [architecture], "vocab_size": 264, "eos_token_id": [257, 259]}
        return folder_with(tmp_path, config | {"max_position_embeddings": 8192} | more)

    return make


def build_quietly(options: RunnerOptions) -> Built:
    return build(options, lambda *_: None)


def first_tokens(built: Built, prompt: str, count: int) -> list[int]:
    hand, running = Hand(num_tokens=200), request(3, prompt, **GREEDY)
    hand.sliding = bool(built.cache_config.num_sliding_tokens)
    for _ in range(count):
        plan = hand.plan([running])
        collect(plan, built.runner.launch(plan).wait(), [running])
    built.runner.close()
    return running.output_ids


def test_a_test_model_is_built_and_answers(toy: Callable[..., Path]) -> None:
    built = build_quietly(RunnerOptions(toy("CorymbHash"), max_running_requests=7))
    assert (built.vocab_size, built.context_length, built.eos_ids) == (264, 8192, {257, 259})
    assert built.cache_config.num_rows == 8
    assert built.max_total_num_tokens == 7 * 8192
    assert text(first_tokens(built, "ab", 4)) == "svdt"


def test_a_window_in_the_config_makes_a_sliding_pool(toy: Callable[..., Path]) -> None:
    built = build_quietly(RunnerOptions(toy("CorymbHash", sliding_window=4), max_total_tokens=1000))
    assert built.cache_config.sliding_window == 4
    assert built.cache_config.num_sliding_tokens == 801
    assert len(first_tokens(built, "ab", 4)) == 4


def test_a_decoder_with_invented_weights_is_built_and_answers(tmp_path: Path) -> None:
    stages: list[tuple[str, bool]] = []
    options = RunnerOptions(folder_with(tmp_path, LLAMA), load_format="dummy", context_length=128, max_total_tokens=500)
    built = build(options, lambda name, seconds, detail: stages.append((name, seconds is None)))
    assert stages == [(name, begins) for name in ("weights", "pools", "warm-up") for begins in (True, False)]
    assert built.pools_bytes == 500 * 2 * 2 * 2 * 8 * 4
    assert built.context_length == 128
    assert all(0 <= token < 300 for token in first_tokens(built, "hello", 3))


def test_pools_fit_the_cache_that_hands_out_their_slots(toy: Callable[..., Path]) -> None:
    options = RunnerOptions(toy("CorymbHash", sliding_window=8), max_total_tokens=250, page_size=16)
    built = build_quietly(options)
    built.runner.close()
    config = built.cache_config
    assert built.max_total_num_tokens == 240
    cache = Cache(config)
    assert cache.available().full == 240
    layers = allocate([FULL, SLIDING], config, dtype=torch.float32, place=Place(torch.device("cpu")))
    assert [len(layer.keys) for layer in layers] == [256, config.num_sliding_tokens]
    assert not layers[0].keys.any()


def test_the_context_length_cannot_grow(toy: Callable[..., Path]) -> None:
    with pytest.raises(UnsupportedModel, match="--context-length 9000 is more than the model's 8192"):
        build_quietly(RunnerOptions(toy("CorymbTape"), context_length=9000))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cuda"}, "--device cuda finds no GPU"),
        ({"quantization": "int8"}, "leave --quantization out"),
        ({"device": "cpu", "kv_cache_dtype": "fp8_e4m3"}, "needs a GPU"),
    ],
)
def test_what_is_not_supported_is_refused(
    toy: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, options: dict[str, str], message: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelError, match=message):
        build_quietly(RunnerOptions(toy("CorymbTape"), **options))  # type: ignore[arg-type]


def test_memory_is_checked_before_weights_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "host_memory", lambda: Memory(GIB, 1000))
    stages: list[str] = []
    with pytest.raises(NotEnoughMemory, match="Too little memory: the weights take"):
        build(RunnerOptions(folder_with(tmp_path, LLAMA)), lambda name, *_: stages.append(name))
    assert stages == []


def sized(available: float, **asked: object) -> tuple[int, int]:
    request = PoolRequest(**({"context_length": 8192, "max_running_requests": 256} | asked))  # type: ignore[arg-type]
    fraction = asked.get("mem_fraction_static")
    room = find_room(Memory(16 * GIB, int(available)), GIB, fraction)  # type: ignore[arg-type]
    sizes = size_pools(token_bytes([FULL] * 30, torch.float32), None, request, room)
    return sizes.num_full_tokens, sizes.size_bytes


PER_TOKEN = 30 * 2 * 2 * 64 * 4


@pytest.mark.parametrize(
    ("available", "asked", "expected"),
    [
        (64 * GIB, {}, 32 * 8192),
        (64 * GIB, {"max_running_requests": 4}, 4 * 8192),
        (5 * GIB, {}, GIB // PER_TOKEN),
        (5 * GIB, {"page_size": 16}, GIB // PER_TOKEN // 16 * 16),
        (5 * GIB, {"max_total_tokens": 256}, 256),
        (5 * GIB, {"max_total_tokens": 100_000}, 100_000),
        (15 * GIB, {"mem_fraction_static": 0.5}, 7 * GIB // PER_TOKEN),
        (5 * GIB, {"mem_fraction_static": 0.9}, 4 * GIB // PER_TOKEN),
    ],
)
def test_pools_take_what_is_asked_or_fits(available: float, asked: dict[str, object], expected: int) -> None:
    num_tokens, size_bytes = sized(available, **asked)
    assert num_tokens == expected
    assert size_bytes == expected * PER_TOKEN


@pytest.mark.parametrize(
    ("available", "asked", "sentence"),
    [
        (GIB / 2, {}, "serve a smaller model or free some memory"),
        (GIB + 1000, {}, "enough for 0 tokens"),
        (5 * GIB, {"mem_fraction_static": 0.01}, "raise --mem-fraction-static"),
        (
            2 * GIB,
            {"max_total_tokens": 10**7},
            r"--max-total-tokens 10000000 needs 286.10 GiB .* enough for 34952 tokens",
        ),
    ],
)
def test_too_little_memory_is_one_sentence(available: float, asked: dict[str, object], sentence: str) -> None:
    with pytest.raises(NotEnoughMemory, match=sentence) as caught:
        sized(available, **asked)
    assert "\n" not in str(caught.value)


def test_the_sliding_pool_is_a_share_but_never_less_than_two_windows() -> None:
    room = find_room(Memory(64 * GIB, 64 * GIB), 0, None)
    for num_tokens, expected in ((100_000, 80_000), (1_200, 1_024), (600, 600)):
        request = PoolRequest(context_length=8192, max_running_requests=8, max_total_tokens=num_tokens)
        sizes = size_pools(TokenBytes(full=4, sliding=8), 512, request, room)
        assert (sizes.num_full_tokens, sizes.num_sliding_tokens) == (num_tokens, expected)
        assert sizes.size_bytes == 4 * num_tokens + 8 * expected


STATE = 10 << 20


def size_with_states(available: float = 8 * GIB, **asked: object) -> tuple[int, int]:
    options = {"context_length": 8192, "max_running_requests": 8} | asked
    fraction = asked.get("mem_fraction_static")
    room = find_room(Memory(16 * GIB, int(available)), 0, fraction)  # type: ignore[arg-type]
    request = PoolRequest(**options)  # type: ignore[arg-type]
    sizes = size_pools(TokenBytes(full=4096, sliding=0, state=STATE), None, request, room)
    assert sizes.size_bytes == sizes.num_full_tokens * 4096 + sizes.num_states * STATE
    return sizes.num_full_tokens, sizes.num_states


def test_states_and_tokens_share_one_budget_by_the_ratio() -> None:
    num_tokens, num_states = size_with_states(mem_fraction_static=0.25, state_ratio=1.0)
    assert num_states == 2 * GIB // STATE
    assert num_tokens == (4 * GIB - num_states * STATE) // 4096


def test_no_more_states_than_requests_can_use_unless_asked_to_fill_the_memory() -> None:
    assert size_with_states()[1] == 4 * 8
    assert size_with_states(max_states=100)[1] == 100


@pytest.mark.parametrize(
    ("available", "asked", "sentence"),
    [
        (8 * GIB, {"max_states": 10_000}, "--max-mamba-cache-size 10000 needs 97.66 GiB and 8.00 GiB are available"),
        (GIB / 16, {"state_ratio": 0.1}, "--mamba-full-memory-ratio 0.1 of 0.02 GiB holds 0; 2 are the least"),
    ],
)
def test_too_little_memory_for_states_is_one_sentence(
    available: float, asked: dict[str, object], sentence: str
) -> None:
    with pytest.raises(NotEnoughMemory, match=sentence):
        size_with_states(available, **asked)


def test_records_of_drafts_come_before_all_pools() -> None:
    cost, request = (
        TokenBytes(full=1000, sliding=0, state=5000, record=300),
        PoolRequest(500, 8, num_records=9 * 8, mem_fraction_static=0.5),
    )
    plain = size_pools(cost, None, replace(request, num_records=0), find_room(Memory(2 * MIB, 2 * MIB), 0, 0.5))
    sizes = size_pools(cost, None, request, find_room(Memory(2 * MIB, 2 * MIB), 0, 0.5))
    assert (sizes.num_records, plain.num_records) == (72, 0)
    assert MIB - 6000 < sizes.size_bytes <= MIB
    assert sizes.num_full_tokens < plain.num_full_tokens
    with pytest.raises(NotEnoughMemory, match=r"records of 72 drafts take .*; lower --max-running-requests or"):
        size_pools(replace(cost, record=20_000), None, request, find_room(Memory(2 * MIB, 2 * MIB), 0, 0.5))


def test_the_start_shows_what_every_pool_got(toy: Callable[..., Path]) -> None:
    details = {}
    options = RunnerOptions(toy("CorymbHash", sliding_window=8, recurrent=True), max_total_tokens=1000, max_states=9)
    build(options, lambda name, _, detail: details.update({name: detail})).runner.close()
    table = [line.split() for line in details["pools"].splitlines()[1:]]
    assert [(line[0], line[1], line[2]) for line in table] == [
        ("full", "1,000", "tokens"),
        ("sliding", "800", "tokens"),
        ("recurrent", "9", "states"),
    ]


def test_a_container_limit_counts(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       8388608 kB\nMemFree:  1 kB\nMemAvailable:   4194304 kB\n")
    assert host_memory(meminfo, tmp_path) == Memory(8 * GIB, 4 * GIB)
    (tmp_path / "memory.max").write_text("max\n")
    assert host_memory(meminfo, tmp_path) == Memory(8 * GIB, 4 * GIB)
    (tmp_path / "memory.max").write_text(f"{2 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{GIB + 512}\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 512\n")
    assert host_memory(meminfo, tmp_path) == Memory(2 * GIB, GIB)


def test_pools_are_zero_in_every_type() -> None:
    config = building.CacheConfig(num_full_tokens=8, num_rows=2, context_length=8)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        (layer,) = allocate([FULL], config, dtype=dtype, place=Place(torch.device("cpu")))
        assert layer.keys.dtype == dtype
        assert np.count_nonzero(layer.values.float().numpy()) == 0


@pytest.mark.parametrize(
    ("options", "interval"),
    [({}, 256), ({"page_size": 16}, 16), ({"state_interval": 48, "page_size": 16}, 48), ({"state_interval": 7}, 7)],
)
def test_states_are_kept_at_every_page_where_pages_are_larger_than_a_token(
    toy: Callable[..., Path], options: dict[str, int], interval: int
) -> None:
    built = build_quietly(RunnerOptions(toy("CorymbHash", recurrent=True), max_total_tokens=640, **options))
    built.runner.close()
    assert built.cache_config.state_interval == interval


def test_an_interval_that_no_page_ends_is_refused(toy: Callable[..., Path]) -> None:
    with pytest.raises(UnsupportedModel, match="--mamba-track-interval 24 must be a multiple of 16"):
        build_quietly(RunnerOptions(toy("CorymbHash", recurrent=True), page_size=16, state_interval=24))


@pytest.mark.parametrize(
    ("fields", "options", "sentence"),
    [
        ({"sliding_window": 8}, {"max_states": 9}, "--max-mamba-cache-size is for models with recurrent state"),
        ({}, {"state_interval": 16}, "--mamba-track-interval is for models with recurrent state"),
        ({"recurrent": True}, {"sliding_ratio": 0.5}, "--swa-full-tokens-ratio is for models with a sliding window"),
    ],
)
def test_options_of_memory_that_a_model_does_not_have_are_refused(
    toy: Callable[..., Path], fields: dict[str, object], options: dict[str, float], sentence: str
) -> None:
    with pytest.raises(UnsupportedModel, match=sentence):
        build_quietly(RunnerOptions(toy("CorymbHash", **fields), **options))  # type: ignore[arg-type]
