"""Drafts that do not fit are refused before any weights are read, in a sentence that says what is wrong."""

from pathlib import Path
from typing import Any

import pytest
import random_drafts as make
import torch
from random_drafts import tensors

from corymb.kernels.attention import AttentionSpec
from corymb.models.architectures import read_config
from corymb.models.errors import ModelError
from corymb.models.pools import token_bytes
from corymb.models.precision import Precision
from corymb.speculative.block_speculation import BlockSpeculation, read_block_speculation
from corymb.speculative.calibration import Scales
from corymb.speculative.draft_dialects import Kind

Config = dict[str, Any]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make.write_target(tmp_path_factory.mktemp("target"))


def read(folder: Path, target: Path, config: Config, **options: Any) -> BlockSpeculation:
    weights = options.pop("weights", None)
    kind: Kind = options.pop("kind", "DSPARK")
    make.write(folder, config, tensors() if weights is None else weights)
    return read_block_speculation(folder, kind, read_config(target), **options)


REFUSED: dict[str, tuple[Config, str]] = {
    "other hidden size": (make.deepspec(hidden_size=48), "hidden states of 48 numbers and its target of 32"),
    "other vocabulary": (make.deepspec(vocab_size=300), "300 tokens and its target 264; it was trained for another"),
    "larger reduced vocabulary": (make.speculators(draft_vocab_size=300), "300 tokens and its target 264"),
    "other target": (make.deepspec(num_target_layers=5), "a target of 5 layers, and this one has 4"),
    "mask outside": (make.deepspec(mask_token_id=264), "one of the target's 264 tokens, not 264"),
    "no mask": (make.deepspec(mask_token_id=None), "one of the target's 264 tokens, not None"),
    "no block": (make.deepspec(block_size=0), "block_size in config.json must be a whole number above zero"),
    "block of the anchor": (
        make.speculators(block_size=1, sample_from_anchor=False),
        "counts the anchor and leaves nothing to draft",
    ),
    "no rank": (make.deepspec(markov_rank=0), "markov_rank in config.json must be a whole number above zero"),
    "unknown head": (make.deepspec(markov_head_type="lstm"), "markov_head_type 'lstm' is not supported"),
    "last layer": (make.deepspec(target_layer_ids=[0, 3]), r"between -1 and 2 of the target's 4; .* names \[0, 3\]"),
    "layers fall": (make.deepspec(target_layer_ids=[2, 0]), r"must rise"),
    "last layer by its input": (make.speculators(aux_hidden_state_layer_ids=[1, 4]), "between 0 and 3"),
    "unused anchor of DeepSpec": (make.deepspec(sample_from_anchor=False), "sets sample_from_anchor to false"),
    "unused anchor of SpecForge": (make.specforge(sample_from_anchor=False), "not what DSparkDraftModel was trained"),
    "other projector": (make.specforge(projector_type="eagle"), "does not go with projector_type 'eagle'"),
    "other mode": (make.specforge(attention_mode="causal"), "attention_mode 'causal' is not supported"),
    "other speculator": (make.speculators(speculators_model_type="eagle3"), "speculators_model_type 'eagle3'"),
    "bundled without layers": (make.bundled(dspark_target_layer_ids=None), "without dspark_target_layer_ids"),
    "hyper-connections": (make.bundled(hc_mult=4), "hyper-connections, which are not supported"),
    "no draft": (make.SIZES | {"architectures": ["Qwen3ForCausalLM"]}, "not that of a block draft"),
    "DFlash": (make.dflash(), "holds a DFLASH draft; serve it with --speculative-algorithm DFLASH"),
    "fc of other layers": (make.deepspec(target_layer_ids=[0, 1, 2]), "fc.weight in .* has shape"),
    "gate missing": (make.deepspec(markov_head_type="gated"), "lacks the tensors .* markov_head.gate_proj"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(tmp_path: Path, target: Path, name: str) -> None:
    config, sentence = REFUSED[name]
    with pytest.raises(ModelError, match=sentence):
        read(tmp_path, target, config)


def test_more_drafts_than_it_was_trained_for_are_refused(tmp_path: Path, target: Path) -> None:
    with pytest.raises(ModelError, match=r"trained for 3 tokens and cannot draft 4; .*-num-draft-tokens 4 or less"):
        read(tmp_path, target, make.deepspec(), num_drafts=4)


def test_a_confidence_that_is_needed_and_missing_is_refused(tmp_path: Path, target: Path) -> None:
    with pytest.raises(ModelError, match="speaks of a confidence head, and its weights hold none"):
        read(tmp_path, target, make.deepspec(), weights=tensors(confidence=False))
    config = make.deepspec(enable_confidence_head=False)
    without = tensors(confidence=False)
    with pytest.raises(ModelError, match="has no confidence head, by which drafts would be chosen"):
        read(tmp_path, target, config, weights=without, needs_confidence=True)
    assert not read(tmp_path, target, config, weights=without).config.confident


def test_temperatures_for_another_block_are_refused(tmp_path: Path, target: Path) -> None:
    with pytest.raises(ModelError, match="2 temperatures for the confidence of 3 drafts"):
        read(tmp_path, target, make.deepspec(), temperatures=Scales((1.0, 1.0)))


def test_a_reduced_vocabulary_without_its_map_is_refused(tmp_path: Path, target: Path) -> None:
    weights = tensors(drafted=132)
    weights.pop("d2t")
    with pytest.raises(ModelError, match=r"drafts 132 of the target's 264 tokens, and has no d2t"):
        read(tmp_path, target, make.speculators(draft_vocab_size=132), weights=weights)


def test_stored_copies_of_what_is_the_targets_are_not_read(tmp_path: Path, target: Path) -> None:
    weights = tensors() | {
        "lm_head.weight": torch.zeros(make.VOCAB, make.HIDDEN),
        "rotary_emb.inv_freq": torch.zeros(4),
        "t2d": torch.zeros(make.VOCAB, dtype=torch.bool),
        "verifier_norm.weight": torch.zeros(make.HIDDEN),
    }
    read(tmp_path, target, make.deepspec(), weights=weights)
    weights["markov_head.extra.weight"] = torch.zeros(3)
    with pytest.raises(ModelError, match=r"holds tensors its config.json has no place for: markov_head.extra.weight"):
        read(tmp_path, target, make.deepspec(), weights=weights)


def test_memory_of_drafts_is_counted(tmp_path: Path, target: Path) -> None:
    speculation = read(tmp_path, target, make.deepspec())
    # Two layers of two heads of eight numbers, keys and values, in float32.
    assert token_bytes(speculation.attention_specs, torch.float32).full == 2 * 2 * 2 * 8 * 4
    assert token_bytes(speculation.attention_specs, torch.float32).sliding == 0
    assert all(isinstance(spec, AttentionSpec) for spec in speculation.attention_specs)
    own = sum(tensor.numel() for name, tensor in tensors().items() if name != "embed_tokens.weight")
    assert speculation.weights_bytes(Precision("float32", "float32")) == own * 4
