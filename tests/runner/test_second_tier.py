"""What the device loses comes back from the host, exactly: conversations on models that read back what is in the pools,
whose every kind of memory is taken away again and again."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from by_loop import FakePort, serve_rounds
from talks import EVERYTHING, NUM_TOKENS, ask, cached, conversations, says, toy_folder

from corymb.cache.cache import Cache
from corymb.cache.config import CacheConfig, HostConfig
from corymb.cache.writes import HostCopy
from corymb.kernels.attention import AttentionSpec
from corymb.models.host_pools import make_host_pools
from corymb.models.memory import Memory
from corymb.models.placement import Place
from corymb.models.pools import allocate
from corymb.models.second_tier import SecondTier, host_config
from corymb.models.sizing import NotEnoughMemory, PoolSizes, TokenBytes
from corymb.models.toy_folders import write_toy

MODELS = ["hash", "hash-sliding", "hash-recurrent", "hash-hybrid"]
POLICIES = ["write_through", "write_through_selective", "write_back"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    def folder(model: str) -> Path:
        return toy_folder(tmp_path_factory.mktemp(model), model)

    return folder


def talk(
    folder: Path, model: str, options: dict[str, object], after_step: Callable[[Cache], None] = lambda _: None
) -> list[FakePort]:
    """Holds all conversations, one turn of all at a time, and checks every answer."""
    if model in {"hash", "hash-sliding"}:
        options = {name: value for name, value in options.items() if name not in {"state_interval", "max_states"}}
    turns = list(conversations(model)) if model != "hash" else list(plain_conversations())
    rounds = [[ask(str(i), prompt) for i, prompt in enumerate(prompts)] for prompts in turns]
    ports = serve_rounds(folder, rounds, {"max_total_tokens": 4096} | options, after_step=after_step)
    for prompts, port in zip(turns, ports, strict=True):
        answers = [bytes(port.token_ids(str(i))) for i in range(len(prompts))]
        assert answers == [(says if model != "hash" else plain)(prompt, NUM_TOKENS, model) for prompt in prompts]
    return ports


def plain_conversations() -> Iterator[list[bytes]]:
    prompts = [b"one beginning, " * 4 + f"question {i}: ".encode() for i in range(8)]
    for _ in range(3):
        yield prompts
        prompts = [prompt + plain(prompt, NUM_TOKENS, "hash") + b" and? " for prompt in prompts]


def plain(prompt: bytes, num_tokens: int, model: str) -> bytes:
    assert model == "hash"
    token_ids = list(prompt)
    for _ in range(num_tokens):
        total = sum((i + 1) * (token * 40503 % 65521) for i, token in enumerate(token_ids))
        token_ids.append(97 + (total % 65521 >> 5) % 26)
    return bytes(token_ids[len(prompt) :])


class Thief:
    """Takes one component away from the device after every so many steps, and remembers the cache."""

    def __init__(self, component: str, interval: int) -> None:
        self.component, self.interval, self.num_steps = component, interval, 0

    def __call__(self, cache: Cache) -> None:
        self.num_steps += 1
        self.cache = cache
        if self.num_steps % self.interval == 0:
            cache.execute(cache.tree.evict({self.component: EVERYTHING}))
        cache.check()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("page_size", [1, 4])
def test_answers_do_not_depend_on_where_their_beginnings_were(
    folders: Callable[[str], Path], model: str, policy: str, page_size: int
) -> None:
    thief = Thief("full", 3)
    options = {"page_size": page_size, "state_interval": 4, "second_tier": SecondTier(policy=policy)}
    talk(folders(model), model, options, thief)
    assert thief.cache.host is not None
    moved = thief.cache.host.moved
    assert moved.stored["full"] > 0
    assert moved.loaded["full"] > 0
    assert all(moved.loaded.values()), "a component never came back"


@pytest.mark.parametrize("component", ["sliding", "recurrent"])
@pytest.mark.parametrize("policy", POLICIES)
def test_one_component_alone_comes_back(folders: Callable[[str], Path], component: str, policy: str) -> None:
    thief = Thief(component, 1)
    talk(folders("hash-hybrid"), "hash-hybrid", {"state_interval": 4, "second_tier": SecondTier(policy=policy)}, thief)
    assert thief.cache.host is not None
    assert thief.cache.host.moved.loaded[component] > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_little_memory_on_both_sides(folders: Callable[[str], Path], policy: str) -> None:
    options = {"max_total_tokens": 600, "sliding_ratio": 0.5, "max_states": 7, "state_interval": 16}
    thief = Thief("full", EVERYTHING)
    talk(folders("hash-hybrid"), "hash-hybrid", options | {"second_tier": SecondTier(0.6, policy=policy)}, thief)
    assert thief.cache.host is not None
    assert thief.cache.host.moved.stored["full"] > 0


@pytest.mark.parametrize("policy", ["write_through", "write_back"])
def test_a_conversation_goes_on_from_the_host_as_from_the_device(folders: Callable[[str], Path], policy: str) -> None:
    options = {"state_interval": 4, "chunked_prefill_size": 32}

    def forget_when_idle(cache: Cache) -> None:
        if not cache.leases:
            cache.execute(cache.tree.evict({"full": EVERYTHING}))

    kept = talk(folders("hash-hybrid"), "hash-hybrid", options)
    options["second_tier"] = SecondTier(policy=policy)
    lost = talk(folders("hash-hybrid"), "hash-hybrid", options, forget_when_idle)
    # What is stored at the end of a request has one window, at that end: every fourth conversation goes on there.
    step = 1 if policy == "write_back" else 4
    assert [cached(port)[::step] for port in lost] == [cached(port)[::step] for port in kept]


def test_copies_are_done_in_their_order_and_bit_for_bit() -> None:
    config = CacheConfig(num_full_tokens=900, host=HostConfig(num_full_tokens=700))
    place, specs = Place(torch.device("cpu")), [AttentionSpec(2, 2, 3, 1.0), AttentionSpec(2, 1, 5, 1.0)]
    kv = allocate(specs, config, dtype=torch.bfloat16, place=place)
    for layer in kv:
        layer.keys.normal_()
        layer.values.normal_()
    before = [(layer.keys.clone(), layer.values.clone()) for layer in kv]
    host = make_host_pools(specs, kv, (), config, place)
    assert host is not None
    random = np.random.default_rng(0)
    device, there, back = (random.permutation(count)[:600].astype(np.int32) for count in (900, 700, 900))
    host.copy([HostCopy("full", True, device, there)])
    for layer in kv:
        layer.keys.zero_()
        layer.values.zero_()
    host.copy([HostCopy("full", False, there, back)])
    for layer, (keys, values) in zip(kv, before, strict=True):
        assert torch.equal(layer.keys[back.tolist()], keys[device.tolist()])
        assert torch.equal(layer.values[back.tolist()], values[device.tolist()])


def test_a_model_that_keeps_nothing_can_have_a_second_tier(tmp_path: Path) -> None:
    write_toy("corymb/tape", tmp_path)
    prompt = b"a beginning that is asked for twice"
    rounds = [[ask("0", prompt)], [ask("0", prompt)]]
    thief = Thief("full", 1)
    options = {"max_total_tokens": 600, "second_tier": SecondTier(size_bytes=1 << 20)}
    first, again = serve_rounds(tmp_path, rounds, options, after_step=thief)
    assert again.token_ids("0") == first.token_ids("0")
    assert cached(again) == [len(prompt) - 1]


def test_sizes_follow_the_device_or_the_bytes_asked_for() -> None:
    sizes = PoolSizes(1000, 500, 10, TokenBytes(8, 4, 100))  # 11,000 bytes
    memory = Memory(1 << 20, 30_000)
    assert host_config(SecondTier(2.0), 4, sizes, memory) == HostConfig(
        num_full_tokens=2004,
        num_sliding_tokens=1004,
        num_states=21,
        full_bytes=8,
        sliding_bytes=4,
        state_bytes=100,
    )
    assert host_config(SecondTier(size_bytes=5500), 1, sizes, memory).num_full_tokens == 501
    with pytest.raises(NotEnoughMemory, match="lower --hicache-ratio or --hicache-size"):
        host_config(SecondTier(3.0), 1, sizes, memory)
