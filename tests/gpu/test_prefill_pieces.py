"""Prompts' steps captured piece by piece say what the same steps say kernel by kernel."""

import json

import numpy as np
import pytest
import torch
from by_hand import GREEDY, Hand, Part, Running
from safetensors.torch import save_file

from corymb.kernels.select import Wish
from corymb.models.architectures import read_config
from corymb.models.build import RunnerOptions, build
from corymb.models.cuda_options import CudaOptions
from corymb.models.cuda_prefill import prefill_tiers
from corymb.models.inventory import expected_tensors
from corymb.models.weights import DummyWeights
from corymb.scheduler.messages import LogprobOptions, Sampling

SHAPE = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 90,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}
SLIDING = SHAPE | {"sliding_window": 12, "use_sliding_window": True, "max_window_layers": 1}
SPARSE = SHAPE | {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "indexer_types": ["full", "shared"],
    "index_topk": 6,
    "index_n_heads": 4,
    "index_head_dim": 16,
}


def runner(folder, *, captured, **options):
    asked = CudaOptions(
        attention=Wish(both="triton", **options),
        graph_max_tokens=0,
        fused_rows=4,
        prefill_graph_max_tokens=captured,
        max_step_tokens=128,
    )
    sizes = {"max_running_requests": 8, "max_total_tokens": 512}
    if "sliding_window" in json.loads((folder / "config.json").read_text()):
        sizes["sliding_ratio"] = 1.0  # as large as the hand's
    built = build(RunnerOptions(folder, device="cuda", dtype="float32", cuda=asked, **sizes), lambda *_: None)
    return built.runner


def run(one, plans):
    """All results, each read one step late."""
    results, launched = [], None
    for plan in plans:
        behind = one.launch(plan)
        if launched is not None:
            results.append(launched.wait())
        launched = behind
    results.append(launched.wait())
    one.close()
    return results


@pytest.mark.parametrize("kind", ["full", "sliding", "sparse"])
def test_pieces_agree_with_kernels_queued_one_by_one(tmp_path, kind):
    config = {"full": SHAPE, "sliding": SLIDING, "sparse": SPARSE}[kind]
    (tmp_path / "config.json").write_text(json.dumps(config))
    shapes = expected_tensors(read_config(tmp_path).decoder)
    invented = DummyWeights(shapes, torch.float32, torch.device("cpu"))
    save_file({name: invented.take(name) for name in shapes}, tmp_path / "model.safetensors")
    numbers = np.random.default_rng(7)
    hand = Hand(num_tokens=512, sliding="sliding_window" in config)
    options = LogprobOptions(top=1, prompt_from=1)
    sequences = [
        Running(row + 1, numbers.integers(3, 90, size=size).astype(np.int32), Sampling(max_new_tokens=64, **GREEDY))
        for row, size in enumerate((9, 31, 14))
    ]
    sequences.append(Running(4, np.arange(5, 25, dtype=np.int32), Sampling(max_new_tokens=9, **GREEDY), options))
    more = [
        Running(row + 5, numbers.integers(3, 90, size=size).astype(np.int32), Sampling(max_new_tokens=64, **GREEDY))
        for row, size in enumerate((20, 25, 30))
    ]
    plans = [
        hand.plan([Part(more[0]), Part(more[1])]),  # samples from a token that the next step's tier does not have
        hand.plan([Part(more[2])]),
        hand.plan([Part(sequences[0]), Part(sequences[1], 20)]),  # 29 of 32 tokens
        hand.plan([Part(sequences[0]), Part(sequences[1]), Part(sequences[2])]),  # 26: what the step before left stays
        hand.plan([Part(sequences[3]), Part(sequences[2])]),
        hand.plan([Part(one) for one in sequences]),
    ]
    most = 48
    if not torch.cuda.is_available() and kind != "full":  # the interpreter takes its time
        plans, most = plans[2:4], 32
    ours, theirs = run(runner(tmp_path, captured=most), plans), run(runner(tmp_path, captured=0), plans)
    for one, other in zip(ours, theirs, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert one.errors == other.errors == {}
        assert one.prompt_logprobs.keys() == other.prompt_logprobs.keys()
        for row, entries in one.prompt_logprobs.items():
            expected = [entry.logprob for entry in other.prompt_logprobs[row]]
            assert np.allclose([entry.logprob for entry in entries], expected, atol=1e-4)


def test_tiers_end_with_the_largest_step_and_waste_little():
    assert prefill_tiers(0) == []
    assert prefill_tiers(20) == [20]
    assert prefill_tiers(8192)[-2:] == [7168, 8192]
    for most in (33, 100, 2048, 5000, 8192):
        captured = np.array(prefill_tiers(most))
        assert captured[-1] == most
        assert (np.diff(captured) > 0).all()
    assert len(prefill_tiers(8192)) < 30
