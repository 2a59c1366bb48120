"""A widened model says what the small one says, whatever its new weights are."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from small import corpus, shape, write_target

from corymb.models.architectures import read_config
from corymb.models.load import LoadOptions, load_model
from corymb.speculative.draft_files import WEIGHTS, write_draft
from corymb.speculative.lessons import Lessons, Plan
from corymb.speculative.teacher import Looking, OnlineFeatures, open_teacher, read_shared
from corymb.speculative.trainable import TrainableDraft, initialise

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def widen() -> ModuleType:
    spec = importlib.util.spec_from_file_location("widen", BENCHMARKS / "widen.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("tied", [True, False])
def test_logits_and_features_are_those_of_the_small_model(widen: ModuleType, tied: bool, tmp_path: Path) -> None:
    small, wide = write_target(tmp_path / "small", tied=tied), tmp_path / "wide"
    widen.SPREAD = 1.0  # what could reach the output, would
    total = widen.widen(small, wide, widen.Sizes(hidden=80, heads=12, kv_heads=3, inner=100), device="cpu")
    assert total > 3 * sum(tensor.numel() for tensor in load_file(small / "model.safetensors").values())
    sequences = [corpus().ids_of(index) for index in range(3)]
    said = []
    for folder in (small, wide):
        features, hidden = open_teacher(folder, Looking((0, 2), max_tokens=200)).look(sequences)
        logits = load_model(folder, read_config(folder), LoadOptions()).logits(hidden)
        said.append((logits, features.view(len(features), 2, -1)))
    (logits, features), (wide_logits, wide_features) = said
    torch.testing.assert_close(wide_logits, logits, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(wide_features[:, :, :32], features, atol=1e-4, rtol=1e-4)
    assert wide_features[:, :, 32:].abs().max() == 0


def test_most_of_the_new_weights_are_not_zero(widen: ModuleType, tmp_path: Path) -> None:
    small, wide = write_target(tmp_path / "small"), tmp_path / "wide"
    sizes = widen.Sizes(hidden=224, heads=32, kv_heads=8, inner=512)
    widen.widen(small, wide, sizes, device="cpu", dtype=torch.bfloat16)
    tensors = [tensor for file in wide.glob("*.safetensors") for tensor in load_file(file).values()]
    assert {tensor.dtype for tensor in tensors if tensor.dim() == 2} == {torch.bfloat16}
    assert {tensor.dtype for tensor in tensors if tensor.dim() == 1} == {torch.float32}
    zeros = sum(int((tensor == 0).sum()) for tensor in tensors)
    assert zeros < 0.25 * sum(tensor.numel() for tensor in tensors)
    with pytest.raises(SystemExit, match="does not fit"):
        widen.widen(wide, tmp_path / "again", widen.Sizes(hidden=32, heads=4, kv_heads=2, inner=64), device="cpu")


def test_sizes_of_the_real_one_are_those_of_an_8b_model(widen: ModuleType) -> None:
    wide = widen.WIDE
    attention = 2 * wide.hidden * 64 * (wide.heads + wide.kv_heads)
    a_token = 30 * (attention + 3 * wide.hidden * wide.inner) + 49_152 * wide.hidden
    assert np.isclose(a_token, 7.5e9, rtol=0.01)


@pytest.mark.parametrize("wishes", [{}, {"markov": "vanilla", "markov_tied": False}], ids=str)
def test_a_widened_draft_guesses_what_the_small_one_does(
    widen: ModuleType, wishes: dict[str, object], tmp_path: Path
) -> None:
    widen.SPREAD = 0.3
    small, wide = write_target(tmp_path / "small"), tmp_path / "wide"
    sizes = widen.Sizes(hidden=80, heads=12, kv_heads=3, inner=70)
    widen.widen(small, wide, sizes, device="cpu")
    draft = made(small, **wishes)
    for weight in draft.parameters():
        weight.data.add_(0.2 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(2)))
    write_draft(tmp_path / "draft", draft, num_anchors=4)
    widen.widen(tmp_path / "draft", tmp_path / "wide draft", sizes, device="cpu")
    guesses = []
    for target, folder in ((small, "draft"), (wide, "wide draft")):
        draft = made(target, **(wishes if folder == "draft" else {**wishes, "intermediate_size": 70}))
        draft.load_state_dict({name: one.float() for name, one in load_file(tmp_path / folder / WEIGHTS).items()})
        teacher = open_teacher(target, Looking((0, 1), max_tokens=200))
        lessons = Lessons(
            corpus(), OnlineFeatures(teacher, corpus()), Plan(2, 3, 3), seed=0, device=torch.device("cpu")
        )
        guesses.append(draft(lessons.lesson(0).blocks))
    torch.testing.assert_close(guesses[1].hidden[..., :32], guesses[0].hidden, atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(guesses[1].confidence, guesses[0].confidence, atol=1e-2, rtol=1e-2)
    assert guesses[1].hidden[..., 32:].abs().max() == 0


def made(target: Path, **wishes: object) -> TrainableDraft:
    embedding = read_shared(target, torch.device("cpu"), torch.float32).embedding
    draft = TrainableDraft(shape(target, target_layers=(0, 1), tied=True, **wishes), embedding)
    initialise(draft, seed=1)
    return draft
