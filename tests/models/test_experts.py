"""Routers and experts against their definitions, one token at a time."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from corymb.kernels import reference_experts
from corymb.kernels.reference_experts import Expert
from corymb.kernels.routing import Gating, Routing
from corymb.kernels.torch_experts import gate, route
from corymb.models.architectures import read_config
from corymb.models.errors import BrokenModel, UnsupportedModel
from corymb.models.experts import ExpertWeights, Rule, SeparateExperts
from corymb.models.inventory import draft_layers, expected_tensors
from corymb.models.linear import PlainLinear
from corymb.models.load import LoadOptions, load_model, weights_size_bytes

ROUTINGS = {
    "softmax": Routing(8, 3, normalized=False),
    "normalized": Routing(8, 2),
    "sigmoid": Routing(8, 3, scores="sigmoid", scale=2.5),
    "groups": Routing(8, 3, scores="sigmoid", num_groups=4, top_groups=2, scale=2.5),
    "all of them": Routing(4, 4),
}
GATINGS = {"swiglu": Gating(), "clamped": Gating(slope=1.702, lift=1.0, limit=0.7)}


@st.composite
def logits_with_ties(draw: st.DrawFn, columns: int) -> list[list[float]]:
    """Few values, so that many are equal."""
    value = st.integers(-2, 2).map(float)
    return draw(st.lists(st.lists(value, min_size=columns, max_size=columns), min_size=1, max_size=5))


@pytest.mark.parametrize("name", ROUTINGS)
@given(data=st.data())
def test_router_chooses_as_defined_the_lower_of_equals(name: str, data: st.DataObject) -> None:
    routing = ROUTINGS[name]
    logits = data.draw(logits_with_ties(routing.num_experts))
    correction = data.draw(st.none() | logits_with_ties(routing.num_experts).map(lambda rows: rows[0]))
    routed = route(torch.tensor(logits), routing, None if correction is None else torch.tensor(correction))
    for token, row in enumerate(logits):
        expected = reference_experts.choose(row, routing, correction)
        assert routed.ids[token].tolist() == list(expected)
        assert routed.weights[token].tolist() == pytest.approx(list(expected.values()), rel=1e-5)


@pytest.mark.parametrize("name", GATINGS)
def test_gate_bounds_and_lifts_as_defined(name: str) -> None:
    numbers = torch.randn(6, 10, generator=torch.Generator().manual_seed(1))
    one = Expert(torch.eye(10), torch.eye(5))
    expected = torch.stack([reference_experts.apply(row, one, GATINGS[name]) for row in numbers])
    torch.testing.assert_close(gate(numbers, GATINGS[name]).double(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", GATINGS)
def test_tokens_get_their_experts_weighed(name: str) -> None:
    generator = torch.Generator().manual_seed(2)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    weights = [ExpertWeights(normal(12, 7), normal(7, 6), normal(12), normal(7)) for _ in range(8)]
    rule = Rule(ROUTINGS["groups"], GATINGS[name], normal(8))
    experts = SeparateExperts(PlainLinear)(rule, iter(weights))
    x, logits = normal(20, 7), normal(20, 8)
    chosen = [reference_experts.choose(row.tolist(), rule.routing, rule.correction.tolist()) for row in logits]
    written = [Expert(one.gate_up, one.down, one.gate_up_bias, one.down_bias) for one in weights]
    expected = reference_experts.mix(x, written, chosen, rule.gating)
    torch.testing.assert_close(experts(x, logits).double(), expected, atol=1e-4, rtol=1e-4)


MIXTRAL = {
    "architectures": ["MixtralForCausalLM"],
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_local_experts": 4,
}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"num_experts_per_tok": 5}, BrokenModel, r"num_experts_per_tok \(5\) .* more than the 4 experts"),
        ({"hidden_act": "gelu_pytorch_tanh"}, UnsupportedModel, "Experts with activation 'gelu_tanh'"),
        ({"num_local_experts": 0}, BrokenModel, "num_local_experts .* must be a whole number above zero"),
    ],
)
def test_what_no_router_can_follow_is_refused(tmp_path: Path, change: dict, error: type, message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**MIXTRAL, **change}))
    with pytest.raises(error, match=message):
        read_config(tmp_path)


DEEPSEEK = {
    "architectures": ["DeepseekV32ForCausalLM"],
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "q_lora_rank": 16,
    "n_routed_experts": 16,
    "n_group": 4,
    "topk_group": 2,
}
GLM = {**DEEPSEEK, "architectures": ["GlmMoeDsaForCausalLM"]}


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        (DEEPSEEK | {"n_group": 3}, BrokenModel, "16 experts .* do not divide into 3 groups"),
        (DEEPSEEK | {"topk_group": 5}, BrokenModel, "from 5 groups, but has 4"),
        (DEEPSEEK | {"n_group": 16, "topk_group": 16}, BrokenModel, "one expert each"),
        (DEEPSEEK | {"num_experts_per_tok": 9}, BrokenModel, "more than the 8 experts that may be chosen"),
        (DEEPSEEK | {"scoring_func": "softmax"}, UnsupportedModel, "scoring_func 'softmax' .* 'sigmoid' is"),
        (DEEPSEEK | {"topk_method": "greedy"}, UnsupportedModel, "topk_method 'greedy'"),
        (DEEPSEEK | {"moe_layer_freq": 2}, UnsupportedModel, "moe_layer_freq .* must be 1"),
        (DEEPSEEK | {"q_lora_rank": None}, BrokenModel, "lacks q_lora_rank, which the index"),
        (DEEPSEEK | {"qk_rope_head_dim": 7}, BrokenModel, "qk_rope_head_dim .* is odd"),
        (DEEPSEEK | {"index_head_dim": 32}, BrokenModel, r"index_head_dim \(32\) .* less than qk_rope_head_dim \(64\)"),
        (DEEPSEEK | {"mlp_layer_types": ["dense"]}, BrokenModel, "names 1 layers, but the model has 2"),
        (DEEPSEEK | {"mlp_layer_types": ["dense", "odd"]}, UnsupportedModel, "'odd' is not supported"),
        (GLM | {"indexer_types": ["shared", "full"]}, BrokenModel, "The first layer shares an index"),
        (GLM | {"index_topk_pattern": "FX"}, UnsupportedModel, "'X' is not supported; supported are full, shared"),
        (
            DEEPSEEK | {"quantization_config": {"quant_method": "fp8"}},
            UnsupportedModel,
            r"quantized \(fp8\).*serve one saved in",
        ),
    ],
)
def test_latents_and_groups_that_cannot_be_are_refused(tmp_path: Path, config: dict, error: type, message: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(error, match=message):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({}, ["own", "own", "own", "own"]),
        ({"index_topk_freq": 2}, ["own", "own", "shared", "own"]),
        ({"index_topk_freq": 2, "index_skip_topk_offset": 1}, ["own", "shared", "own", "shared"]),
        ({"index_topk_pattern": "FSSF"}, ["own", "shared", "shared", "own"]),
    ],
)
def test_layers_share_an_index_as_any_spelling_says(tmp_path: Path, change: dict, kinds: list[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GLM | {"num_hidden_layers": 4} | change))
    decoder = read_config(tmp_path).decoder
    assert decoder is not None
    assert [layer.indexed for layer in decoder.layers] == kinds


def test_layers_for_speculation_are_left_unread(tmp_path: Path) -> None:
    config = DEEPSEEK | {"num_nextn_predict_layers": 1, "moe_intermediate_size": 8, "first_k_dense_replace": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = read_config(tmp_path)
    assert model.decoder is not None
    shapes = expected_tensors(model.decoder)
    tensors = {name: torch.full(shape, 0.01) for name, shape in shapes.items()}
    size = sum(one.nbytes for one in tensors.values())
    draft = {"model.layers.2.enorm.weight": torch.ones(32), "model.layers.2.self_attn.o_proj.weight": torch.ones(2, 2)}
    save_file(tensors | draft, tmp_path / "model.safetensors")
    read: list[int] = []
    load_model(tmp_path, model, LoadOptions(), on_progress=read.append)
    assert sum(read) == weights_size_bytes(tmp_path, ignored=draft_layers(model.decoder)) == size

    save_file(tensors | {"model.layers.3.enorm.weight": torch.ones(32)}, tmp_path / "model.safetensors")
    with pytest.raises(BrokenModel, match=r"has no place for: model\.layers\.3\.enorm\.weight"):
        load_model(tmp_path, model, LoadOptions())
