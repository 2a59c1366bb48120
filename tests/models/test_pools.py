"""What a token costs in the pools, as it is foreseen twice and as it is."""

import json
from pathlib import Path

import pytest
import torch
from test_company import DEEPSEEK, GEMMA, LLAMA, MIXTRAL

from corymb.cache.config import CacheConfig
from corymb.models.architectures import read_config
from corymb.models.layers import attention_specs
from corymb.models.placement import Place
from corymb.models.pools import allocate, token_bytes
from corymb.models.precision import Precision
from corymb.serve.prepare import _token_bytes

GLM = {**DEEPSEEK, "architectures": ["GlmMoeDsaForCausalLM"], "indexer_types": ["full", "shared"]}
CONFIGS = {"llama": LLAMA, "gemma": GEMMA, "mixtral": MIXTRAL, "deepseek": DEEPSEEK, "glm, shared index": GLM}


@pytest.mark.parametrize("name", CONFIGS)
def test_pools_take_what_was_foreseen(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
    decoder = read_config(tmp_path).decoder
    assert decoder is not None
    specs = attention_specs(decoder)
    cache = CacheConfig(num_full_tokens=10, num_sliding_tokens=7, sliding_window=3, num_rows=2, context_length=8)
    pools = allocate(specs, cache, dtype=torch.bfloat16, place=Place(torch.device("cpu")))
    taken = {False: 0, True: 0}
    for spec, layer in zip(specs, pools, strict=True):
        own = [layer.keys] if spec.latent_dim else [layer.keys, layer.values]
        tensors = [one for one in (*own, layer.index_keys) if one is not None]
        assert len({one.untyped_storage().data_ptr() for one in (*tensors, layer.values)}) == len(tensors)
        taken[spec.window is not None] += sum(one.nbytes for one in tensors)
    cost = token_bytes(specs, torch.bfloat16)
    assert taken == {False: 10 * cost.full, True: 7 * cost.sliding}
    foreseen = _token_bytes(decoder, Precision("bfloat16", "bfloat16"))
    assert (foreseen.full, foreseen.sliding) == (cost.full, cost.sliding)


def test_latents_and_an_index_are_all_that_a_token_costs(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GLM))
    decoder = read_config(tmp_path).decoder
    assert decoder is not None
    numbers = 2 * (64 + 16) + 32  # two layers' latents and what turns, and one index
    assert token_bytes(attention_specs(decoder), torch.float32).full == 4 * numbers
