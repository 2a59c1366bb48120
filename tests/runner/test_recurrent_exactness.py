"""Models that carry a state, through scheduler, cache and runner: they say what transformers says, whatever is cached,
cut, retracted or evicted."""

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from by_loop import serve_rounds

from corymb.cache.cache import Cache
from corymb.scheduler.messages import Generate, Sampling

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DELTA_NET = {
    "layer_types": ["linear_attention", "full_attention"],
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 8,
    "initializer_range": 0.1,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 8,
}
MAMBA = {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_d_state": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "Qwen3Next": {**DELTA_NET, **EXPERTS},
    "Qwen3_5Text": DELTA_NET,
    "FalconH1": {**MAMBA, "key_multiplier": 0.5, "ssm_out_multiplier": 1.5, "initializer_range": 0.3},
    "Lfm2": {"layer_types": ["conv", "full_attention"], "initializer_range": 0.3},
}
VARIANTS: dict[str, dict[str, object]] = {
    "snapshots every 64": {"state_interval": 64},
    "no prefix cache": {"enable_prefix_cache": False},
    "chunks": {"chunked_prefill_size": 96, "state_interval": 128},
    "few states": {"max_states": 5, "state_interval": 64, "max_running_requests": 3},
    "mixed chunks, no overlap": {"chunked_prefill_size": 64, "enable_mixed_chunk": True, "overlap_depth": 0},
    "retraction every 3 steps": {"test_retract_interval": 3, "state_interval": 64},
    "pages of 16, small pool": {"page_size": 16, "max_total_tokens": 640, "max_running_requests": 3},
}
NUM_OUTPUTS = 8
OPTIONS = {"dtype": "float32"}


def prompts() -> list[list[int]]:
    """Prompts that part ways before, at and behind multiples of 64, some of them a few tokens before their end."""
    chooser = random.Random(3)
    trunk = [chooser.randrange(3, 97) for _ in range(210)]
    ends = [(40, 3), (64, 1), (100, 50), (130, 0), (130, 7), (192, 70), (200, 1), (210, 9)]
    return [trunk[:shared] + [chooser.randrange(3, 97) for _ in range(own)] for shared, own in ends]


@cache
def reference(family: str) -> transformers.PreTrainedModel:
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **FAMILIES[family]})
    torch.manual_seed(0)
    architecture = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")
    model = architecture._from_config(config, attn_implementation="eager")
    for name, parameter in model.named_parameters():
        if name.endswith(("norm.weight", "bias")):
            torch.nn.init.normal_(parameter, mean=parameter.mean().item(), std=0.2)
    return model.eval()


@cache
def expected(family: str) -> list[list[int]]:
    """What transformers picks after each prompt."""
    return [greedy(reference(family), prompt) for prompt in prompts()]


@torch.no_grad()
def greedy(model: transformers.PreTrainedModel, prompt: list[int]) -> list[int]:
    ids = list(prompt)
    for _ in range(NUM_OUTPUTS):
        ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A checkpoint of each family."""

    @cache
    def saved(family: str) -> Path:
        path = tmp_path_factory.mktemp(family)
        reference(family).save_pretrained(path)
        return path

    return saved


def ask(rid: str, prompt: list[int]) -> Generate:
    sampling = Sampling(max_new_tokens=NUM_OUTPUTS, temperature=0.0, ignore_eos=True)
    return Generate(rid=rid, prompt=np.array(prompt, np.int32).tobytes(), sampling=sampling)


def said(port: Any) -> list[list[int]]:
    return [port.token_ids(str(index)) for index in range(len(port.outputs))]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_those_of_transformers(folder: Callable[[str], Path], family: str, variant: str) -> None:
    asked = [ask(str(index), prompt) for index, prompt in enumerate(prompts())]
    first, second = serve_rounds(folder(family), [asked, asked[::-1]], VARIANTS[variant] | OPTIONS)
    assert said(first) == said(second) == expected(family)
    assert second.stats is not None
    cached = second.stats.num_cached_tokens
    assert cached == 0 if variant == "no prefix cache" else cached > 300


@pytest.mark.parametrize("component", ["recurrent", "full"])
@pytest.mark.parametrize("family", FAMILIES)
def test_eviction_of_one_component_changes_no_token(folder: Callable[[str], Path], family: str, component: str) -> None:
    evicted = 0

    def evict(cache: Cache) -> None:
        nonlocal evicted
        before = cache.usage()[component].evictable
        cache.execute(cache.tree.evict({component: 1}))
        evicted += before - cache.usage()[component].evictable

    asked = [ask(str(index), prompt) for index, prompt in enumerate(prompts())]
    variant = {"state_interval": 64, "max_running_requests": 2, **OPTIONS}
    rounds = serve_rounds(folder(family), [asked, asked], variant, after_step=evict)
    assert [said(port) for port in rounds] == [expected(family)] * 2
    assert evicted > 10


@pytest.mark.parametrize("family", FAMILIES)
def test_a_conversation_goes_on_from_where_it_ended(folder: Callable[[str], Path], family: str) -> None:
    """The state that a finished request leaves lies off the grid."""
    opening = prompts()[6]
    answer = expected(family)[6]
    following = [*opening, *answer, 17, 23, 42]
    rounds = serve_rounds(
        folder(family), [[ask("0", opening)], [ask("0", following)]], {"state_interval": 256, **OPTIONS}
    )
    assert [said(port) for port in rounds] == [[answer], [greedy(reference(family), following)]]
    assert rounds[1].stats is not None
    assert rounds[1].stats.num_cached_tokens == len(opening) + NUM_OUTPUTS - 1
