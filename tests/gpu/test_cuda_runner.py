"""The GPU's runner against the CPU's, plan by plan: same weights, same plans, same tokens."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from by_hand import GREEDY, Hand, Part, Running
from safetensors.torch import save_file

from corymb.cache.config import CacheConfig
from corymb.cache.writes import StateWrites
from corymb.kernels.select import Wish
from corymb.kernels.torch_attention import TorchAttention
from corymb.models.architectures import read_config
from corymb.models.build import RunnerOptions, build
from corymb.models.cuda_build import CudaParts, make_device
from corymb.models.cuda_graphs import tiers
from corymb.models.cuda_options import CudaOptions
from corymb.models.cuda_runner import CudaRunner
from corymb.models.errors import UnsupportedModel
from corymb.models.execution import Execution
from corymb.models.inventory import expected_tensors
from corymb.models.load import LoadOptions, load_model
from corymb.models.placement import Place
from corymb.models.pools import allocate
from corymb.models.rows import Rows
from corymb.models.runner import CpuRunner
from corymb.models.sampler import Sampler
from corymb.models.states import StatePools
from corymb.models.warm_up import EVERY_SAMPLING, warm_up, warm_up_masks
from corymb.models.weights import DummyWeights
from corymb.scheduler.messages import LogprobOptions, Sampling
from corymb.scheduler.plan import Masks

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 90,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}
SLIDING = TINY | {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 2,
    "head_dim": 16,
    "sliding_window": 12,
    "use_sliding_window": True,
    "max_window_layers": 1,
}
MIXTRAL = TINY | {"architectures": ["MixtralForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2}
GPT_OSS = MIXTRAL | {
    "architectures": ["GptOssForCausalLM"],
    "head_dim": 16,
    "num_hidden_layers": 2,
    "sliding_window": 12,
}
DELTA_NET = TINY | {
    "architectures": ["Qwen3_5ForCausalLM"],
    "num_hidden_layers": 2,
    "full_attention_interval": 2,
    "head_dim": 16,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
MAMBA = TINY | {
    "architectures": ["FalconH1ForCausalLM"],
    "mamba_d_ssm": 32,
    "mamba_n_heads": 2,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "key_multiplier": 0.5,
    "ssm_multipliers": [0.5, 0.9, 1.1, 0.6, 1.2],
}
SHORT_CONVOLUTION = TINY | {
    "architectures": ["Lfm2ForCausalLM"],
    "num_hidden_layers": 2,
    "layer_types": ["conv", "full_attention"],
    "block_auto_adjust_ff_dim": False,
}
DEEPSEEK = TINY | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 0,
    "tie_word_embeddings": False,
}
SPARSE = DEEPSEEK | {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "num_hidden_layers": 2,
    "indexer_types": ["full", "shared"],
    "index_topk": 6,
    "index_n_heads": 4,
    "index_head_dim": 16,
}
EOS_IDS = frozenset({2})
RECURRENT = ("Qwen3_5ForCausalLM", "FalconH1ForCausalLM", "Lfm2ForCausalLM")


@pytest.fixture
def folder(tmp_path):
    def write(config):
        (tmp_path / "config.json").write_text(json.dumps(config))
        shapes = expected_tensors(read_config(tmp_path).decoder)
        invented = DummyWeights(shapes, torch.float32, torch.device("cpu"))
        save_file({name: invented.take(name) for name in shapes}, tmp_path / "model.safetensors")
        return tmp_path

    return write


def cache_config(config) -> CacheConfig:
    window = config.get("sliding_window") or 0
    return CacheConfig(
        num_full_tokens=512,
        num_sliding_tokens=512 if window else 0,
        sliding_window=window,
        num_states=9 if config["architectures"][0] in RECURRENT else 0,
        state_interval=64,
        num_rows=9,
        context_length=128,
    )


def gpu_runner(path, config, *, dtype=torch.float32, deterministic=False, **options):
    wish = Wish(both="triton", deterministic=deterministic)
    asked = CudaOptions(attention=wish, max_step_tokens=128, **({"graph_max_tokens": 8, "fused_rows": 4} | options))
    parts = CudaParts(asked, make_device())
    options = parts.equip(LoadOptions(dtype=dtype, device=make_device().device))
    model = load_model(path, read_config(path), options)
    return parts.runner(model, cache_config(config), dtype, dtype, eos_ids=EOS_IDS)


def cpu_runner(path, config):
    place, cache = Place(torch.device("cpu")), cache_config(config)
    model = load_model(path, read_config(path), LoadOptions())
    pools = allocate(model.attention_specs, cache, dtype=torch.float32, place=place)
    sampler = Sampler(cache.num_rows, EOS_IDS, place)
    specs = model.state_specs
    states = StatePools(specs, cache.num_states, dtype=torch.float32, place=place) if specs else None
    return CpuRunner(Execution(model, TorchAttention(), pools, Rows(cache, place), sampler, states=states))


def request(row, prompt_ids, *, logprobs=None, **settings) -> Running:
    return Running(row, prompt_ids, Sampling(max_new_tokens=64, **settings), logprobs)


def script(seed, *, sliding, settings, sizes=(5, 4, 8)):
    """Plans of chunks, decodes and mixtures, made before anything runs."""
    numbers = np.random.default_rng(seed)
    hand = Hand(num_tokens=512, seed=seed, sliding=sliding)
    sequences = [
        request(row + 1, numbers.integers(3, 90, size=size).astype(np.int32), **one)
        for row, (size, one) in enumerate(zip(sizes, settings, strict=True))
    ]
    plans = [hand.plan([Part(sequences[0]), Part(sequences[1], 3)])]
    plans += [hand.plan([Part(sequences[0]), Part(sequences[1]), Part(sequences[2], 6)])]
    plans += [hand.plan([Part(sequences[2]), Part(sequences[0])])]
    plans += [hand.plan([Part(one) for one in sequences]) for _ in range(3)]
    return plans, sequences


def run(runner, plans):
    """All results, each read one step late."""
    results, launched = [], None
    for plan in plans:
        behind = runner.launch(plan)
        if launched is not None:
            results.append(launched.wait())
        launched = behind
    results.append(launched.wait())
    runner.close()
    return results


def assert_same(ours, theirs) -> None:
    for step, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert one.token_ids.tolist() == other.token_ids.tolist(), step
        assert one.counts.tolist() == other.counts.tolist()
        assert one.errors == other.errors
        assert one.logprobs.keys() == other.logprobs.keys()
        assert one.prompt_logprobs.keys() == other.prompt_logprobs.keys()


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (TINY, {"graph_max_tokens": 0, "fused_rows": 0}),
        (TINY, {}),
        (SLIDING, {"fused_rows": 16}),
        (TINY, {"deterministic": True}),
        (MIXTRAL, {}),
        (GPT_OSS, {}),
        (DEEPSEEK, {}),
        (SPARSE, {"deterministic": True}),
        (MIXTRAL, {"deterministic": True}),
    ],
    ids=[
        "eager",
        "graphs",
        "sliding",
        "deterministic",
        "experts",
        "sinks",
        "latents",
        "deterministic index",
        "deterministic experts",
    ],
)
def test_greedy_tokens_are_those_of_the_cpu(folder, config, options) -> None:
    path = folder(config)
    plans, _ = script(1, sliding="sliding_window" in config, settings=[GREEDY] * 3)
    ours = run(gpu_runner(path, config, **options), plans)
    assert_same(ours, run(cpu_runner(path, config), plans))


@pytest.mark.parametrize(
    ("config", "options"),
    [(DELTA_NET, {}), (DELTA_NET, {"deterministic": True}), (MAMBA, {}), (SHORT_CONVOLUTION, {})],
    ids=["delta net", "deterministic", "mamba", "convolution"],
)
def test_states_are_those_of_the_cpu(folder, config, options) -> None:
    """Long and short chunks beside decoding rows; a request starts from the state that another one left."""
    path = folder(config)
    plans, _ = script(5, sliding=False, settings=[GREEDY] * 3, sizes=(75, 4, 14))
    plans = [with_states(plan) for plan in plans]
    writes = plans[-1].states
    first, second, _ = plans[-1].rows[:, None]
    writes = replace(writes, before_from=first, before_to=second, after_from=first, after_to=np.array([8], np.int32))
    plans[-1] = replace(plans[-1], states=writes)
    ours, theirs = gpu_runner(path, config, **options), cpu_runner(path, config)
    assert_same(run(ours, plans), run(theirs, plans))
    expected = theirs._execution._states.tensors
    for mine, other in zip(ours.parts.states.tensors, expected, strict=True):
        torch.testing.assert_close(mine[1:].cpu(), other[1:], atol=2e-5, rtol=2e-4)


def with_states(plan):
    """Each row has the state slot of its number, cleared when it begins."""
    begun = plan.rows[plan.starts == 0]
    return replace(plan, states=replace(StateWrites.only(plan.rows), zero=begun))


def test_every_way_of_sampling_beside_each_other(folder) -> None:
    path = folder(TINY)
    settings = [
        {"temperature": 0.9, "top_p": 0.8, "top_k": 40, "seed": 5, "repetition_penalty": 1.2},
        GREEDY | {"logit_bias": {7: 3.0}, "min_new_tokens": 3, "presence_penalty": 0.5},
        {"temperature": 1.3, "seed": 8, "min_p": 0.01},
    ]
    plans, _ = script(2, sliding=False, settings=settings)
    assert_same(run(gpu_runner(path, TINY), plans), run(cpu_runner(path, TINY), plans))


def masks_of(plan, seed) -> Masks:
    """Random masks for all constrained rows but, where there are several, the last: its request has ended."""
    index = plan.constrained if len(plan.constrained) < 3 else plan.constrained[:-1]
    numbers = np.random.default_rng(seed)
    return Masks(index, numbers.integers(-(2**31), 2**31, size=(len(index), 4)).astype(np.int32))


def run_constrained(runner, plans):
    """Each step's masks come when the step before it was read, as from a loop."""
    results, launched = [], None
    for number, plan in enumerate(plans):
        behind = runner.launch(plan)
        if launched is not None:
            results.append(launched.wait())
        if plan.constrained is not None:
            behind.constrain(masks_of(plan, number))
        launched = behind
    results.append(launched.wait())
    runner.close()
    return results


@pytest.mark.parametrize(
    "settings", [[GREEDY] * 3, [{"seed": 3, "top_k": 9}, GREEDY | {"min_new_tokens": 9}, {"seed": 4}]]
)
def test_masked_rows_sample_beside_others(folder, settings) -> None:
    path, logprobs = folder(TINY), LogprobOptions(top=1)
    plans, sequences = script(4, sliding=False, settings=settings)
    assert sequences[0].row == 1
    masked = [
        replace(plan, constrained=np.flatnonzero(plan.samples & (plan.rows != 2)).astype(np.int32))
        if (plan.samples & (plan.rows != 2)).any()
        else plan
        for plan in plans
    ]
    masked[0] = replace(masked[0], opened=[replace(one, logprobs=logprobs) for one in masked[0].opened])
    ours, theirs = run_constrained(gpu_runner(path, TINY), masked), run_constrained(cpu_runner(path, TINY), masked)
    assert_same(ours, theirs)
    free = run(cpu_runner(path, TINY), plans)
    assert any(one.token_ids.tolist() != other.token_ids.tolist() for one, other in zip(ours, free, strict=True))
    for number, (plan, sampled) in enumerate(zip(masked, ours, strict=True)):
        if plan.constrained is None:
            continue
        masks, places = masks_of(plan, number), np.cumsum(plan.samples) - 1
        for index, bits in zip(masks.index.tolist(), masks.bits, strict=True):
            token_id = int(sampled.token_ids[places[index]])
            assert bits[token_id // 32] >> (token_id % 32) & 1


def test_logprobs_of_prompt_and_output(folder) -> None:
    path = folder(TINY)
    options = LogprobOptions(top=2, prompt_from=1, token_ids=(4,))
    hand = Hand(num_tokens=512)
    sequence = request(1, np.arange(5, 17, dtype=np.int32), logprobs=options, **GREEDY)
    plans = [hand.plan([Part(sequence, 7)]), hand.plan([Part(sequence)]), hand.plan([Part(sequence)])]
    ours, theirs = run(gpu_runner(path, TINY), plans), run(cpu_runner(path, TINY), plans)
    assert_same(ours, theirs)
    for one, other in zip(ours, theirs, strict=True):
        for mine, expected in ((one.logprobs, other.logprobs), (one.prompt_logprobs, other.prompt_logprobs)):
            for index, positions in expected.items():
                assert [p.token_id for p in mine[index]] == [p.token_id for p in positions]
                assert np.allclose([p.logprob for p in mine[index]], [p.logprob for p in positions], atol=1e-4)


def test_a_chunk_in_which_nobody_samples(folder) -> None:
    path = folder(TINY)
    hand = Hand(num_tokens=512)
    sequence = request(1, np.arange(5, 17, dtype=np.int32), **GREEDY)
    plans = [hand.plan([Part(sequence, 7)]), hand.plan([Part(sequence)])]
    assert not plans[0].samples.any()
    assert_same(run(gpu_runner(path, TINY), plans), run(cpu_runner(path, TINY), plans))


def test_unusable_logits_fail_one_row_alone(folder) -> None:
    path = folder(TINY)
    runner = gpu_runner(path, TINY)
    plans, sequences = script(3, sliding=False, settings=[GREEDY] * 3)
    results = run(runner, plans[:3])
    runner.parts.kv[0].values[int(plans[0].slots[0])] = float("nan")  # the first token of the first request
    last = runner.launch(plans[3]).wait()
    assert list(last.errors) == [0]
    assert last.token_ids.min() >= 0
    assert all(not one.errors for one in results)
    del sequences


def test_graphs_agree_with_eager_steps_at_every_tier(folder) -> None:
    path = folder(TINY)
    counts = range(1, 9) if torch.cuda.is_available() else (1, 3)  # the interpreter is slow
    eager = gpu_runner(path, TINY, graph_max_tokens=0)
    captured = gpu_runner(path, TINY, graph_max_tokens=counts[-1] + 1)
    hand = Hand(num_tokens=512)
    sequences = [request(row, np.arange(3, 4 + row, dtype=np.int32), **GREEDY) for row in range(1, counts[-1] + 1)]
    plans = [hand.plan(sequences), *(hand.plan(sequences[:count]) for count in counts)]
    assert_same(run(captured, plans), run(eager, plans))


def test_tiers_waste_little() -> None:
    assert tiers(0) == []
    assert tiers(1) == [1]
    assert tiers(256)[-1] == 256
    assert tiers(100)[-2:] == [96, 100]
    for most in (5, 200, 512, 2048):
        captured = np.array(tiers(most))
        assert (np.diff(captured) > 0).all()
        padded = np.array([captured[captured >= count].min() for count in range(64, most + 1)])
        assert most < 64 or (padded <= 1.15 * np.arange(64, most + 1)).all()


@pytest.mark.gpu
@pytest.mark.parametrize("config", [TINY, DELTA_NET], ids=["attention", "delta net"])
def test_nothing_waits_for_the_gpu(folder, config) -> None:
    path = folder(config)
    settings = [{"temperature": 0.9, "top_p": 0.8, "seed": 5, "repetition_penalty": 1.2}, GREEDY, {"temperature": 1.0}]
    plans = [with_states(plan) for plan in script(4, sliding=False, settings=settings, sizes=(20, 4, 8))[0]]
    runner = gpu_runner(path, config)
    run(runner, plans)  # everything is compiled and every buffer has grown
    torch.cuda.set_sync_debug_mode("error")
    try:
        steps = [runner.launch(plan) for plan in plans[:3]]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [step.wait().counts.sum() > 0 for step in steps]


def test_warm_up_meets_every_kernel_and_disturbs_nobody(folder) -> None:
    path = folder(TINY)
    plans, _ = script(6, sliding=False, settings=[GREEDY, {"temperature": 0.9, "top_p": 0.8, "seed": 5}, GREEDY])
    warmed = gpu_runner(path, TINY)
    warm_up(warmed, (2, 12), EVERY_SAMPLING)
    warm_up_masks(warmed, TINY["vocab_size"])
    assert_same(run(warmed, plans), run(cpu_runner(path, TINY), plans))


def test_build_makes_a_gpus_runner(folder) -> None:
    path = folder(TINY)
    stages = []
    options = RunnerOptions(
        path,
        device="cuda",
        dtype="float32",
        max_total_tokens=256,
        max_running_requests=4,
        context_length=32,
        cuda=CudaOptions(attention=Wish(both="triton"), graph_max_tokens=2, max_step_tokens=64),
    )
    built = build(options, lambda name, seconds, detail: stages.append((name, detail)))
    assert isinstance(built.runner, CudaRunner)
    assert ("graphs", "prefill triton, decode triton, graphs up to 2") in stages
    plan = Hand(num_tokens=200).plan([request(1, np.arange(3, 9, dtype=np.int32), **GREEDY)])
    expected = cpu_runner(path, TINY).launch(plan).wait()
    assert built.runner.launch(plan).wait().token_ids.tolist() == expected.token_ids.tolist()


def test_latents_in_8_bits_are_refused_before_weights_are_read(folder) -> None:
    path = folder(DEEPSEEK)
    (path / "model.safetensors").unlink()
    options = RunnerOptions(path, device="cuda", dtype="float32", max_total_tokens=64, kv_cache_dtype="fp8_e4m3")
    with pytest.raises(UnsupportedModel, match="Latents are not kept in fp8_e4m3; leave --kv-cache-dtype out"):
        build(options, lambda *_: None)


@pytest.mark.parametrize(("config", "prefill_tokens"), [(TINY, 32), (SLIDING, 0)], ids=["captured", "sliding"])
def test_embeddings_are_those_of_the_cpu(folder, config, prefill_tokens) -> None:
    path, numbers = folder(config), np.random.default_rng(4)
    hand = Hand(num_tokens=512, seed=4, sliding="sliding_window" in config)
    sequences = [request(row, numbers.integers(3, 90, size=size).astype(np.int32), **GREEDY) for row, size in
                 ((1, 5), (2, 4), (3, 1), (4, 2))]  # fmt: skip
    for one in (sequences[0], sequences[2], sequences[3]):
        one.embeds = True
    # Beside a prompt, alone with one token, and as the last token of a prompt beside a row that decodes.
    plans = [hand.plan([Part(sequences[0]), Part(sequences[1])])]
    plans += [hand.plan([Part(sequences[2])])]
    plans += [
        hand.plan([Part(sequences[3], 1), Part(sequences[1])]),
        hand.plan([Part(sequences[3]), Part(sequences[1])]),
    ]
    ours = run(gpu_runner(path, config, prefill_graph_max_tokens=prefill_tokens), plans)
    theirs = run(cpu_runner(path, config), plans)
    assert [list(one.embeddings) for one in ours] == [[0], [0], [], [0]]
    for one, other in zip(ours, theirs, strict=True):
        assert one.embeddings.keys() == other.embeddings.keys()
        for owner, vector in one.embeddings.items():
            found, wanted = np.frombuffer(vector, "<f4"), np.frombuffer(other.embeddings[owner], "<f4")
            np.testing.assert_allclose(found, wanted, atol=1e-4)
