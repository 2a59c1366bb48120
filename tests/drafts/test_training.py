"""The parts of a draft's training, each against the plainest way to do the same."""

from pathlib import Path

import numpy as np
import pytest
import torch
from small import corpus, shape

from corymb.kernels.distillation import distil
from corymb.models.config import DecoderConfig, LayerConfig
from corymb.models.rope_config import Rope
from corymb.speculative.draft_loss import CROSS_ENTROPY, L1, Answers, Vocabulary, losses, place_weights
from corymb.speculative.draft_shape import Wishes, shape_for
from corymb.speculative.lessons import Lessons, Plan
from corymb.speculative.teacher import CachedFeatures, Looking, OnlineFeatures, Teacher, open_teacher, read_shared
from corymb.speculative.trainable import Blocks, TrainableDraft, initialise
from corymb.speculative.training_state import packed_bytes, unpacked

CPU = torch.device("cpu")
LAYERS = (0, 1)


@pytest.fixture(scope="module")
def teacher(target: Path) -> Teacher:
    return open_teacher(target, Looking(LAYERS, max_tokens=100))


def random_draft(target: Path, **wishes: object) -> TrainableDraft:
    draft = TrainableDraft(
        shape(target, target_layers=LAYERS, **wishes), read_shared(target, CPU, torch.float32).embedding
    )
    initialise(draft, seed=1)
    generator = torch.Generator().manual_seed(2)
    for weight in draft.parameters():  # nothing silent: a wrong term must show
        weight.data.add_(0.2 * torch.randn(weight.shape, generator=generator))
    return draft


def test_features_are_the_outputs_of_the_layers_that_were_asked_for(target: Path, teacher: Teacher) -> None:
    sequences = [corpus().ids_of(index) for index in range(3)]
    features, hidden = teacher.look(sequences)
    from transformers import LlamaForCausalLM  # brings Triton, which tests/gpu must be the first to import

    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)
    expected, last = [], []
    for ids in sequences:
        with torch.no_grad():
            said = model.model(torch.from_numpy(ids.astype(np.int64))[None], output_hidden_states=True)
        expected.append(torch.cat([said.hidden_states[layer + 1][0] for layer in LAYERS], dim=1))
        last.append(said.last_hidden_state[0])
    torch.testing.assert_close(features, torch.cat(expected), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(hidden, torch.cat(last), atol=1e-4, rtol=1e-4)


def test_cached_and_computed_features_agree(teacher: Teacher) -> None:
    conversations = corpus()
    picked = np.array([5, 0, 11, 5])
    online = OnlineFeatures(teacher, conversations).of(picked, 64)
    cached = CachedFeatures(teacher, conversations).of(picked, 64)
    for one, other in zip(online, cached, strict=True):
        assert one.shape == other.shape
        for row, length in enumerate(conversations.lengths[picked].tolist()):
            torch.testing.assert_close(one[row, :length], other[row, :length], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("wishes", [{}, {"markov": "vanilla"}, {"markov_tied": False}], ids=str)
def test_a_block_depends_on_its_own_context_alone(target: Path, teacher: Teacher, wishes: dict[str, object]) -> None:
    draft = random_draft(target, **wishes)
    lessons = Lessons(corpus(), OnlineFeatures(teacher, corpus()), Plan(2, 5, 3), seed=0, device=CPU)
    blocks = lessons.lesson(0).blocks
    together = draft(blocks)
    for sequence in range(2):
        for anchor in range(5):
            position = int(blocks.anchors[sequence, anchor])
            alone = draft(
                Blocks(
                    # What stands at the anchor and behind it must not matter.
                    torch.cat((blocks.features[sequence, :position], torch.full((64 - position, 64), 9.0)))[None],
                    blocks.anchors[sequence, anchor].view(1, 1),
                    blocks.previous[sequence, anchor].view(1, 1, 3),
                )
            )
            torch.testing.assert_close(alone.hidden[0, 0], together.hidden[sequence, anchor], atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(alone.confidence[0, 0], together.confidence[sequence, anchor])


def test_lessons_show_what_the_target_wrote_and_thought(target: Path, teacher: Teacher) -> None:
    conversations = corpus()
    features = OnlineFeatures(teacher, conversations)
    lessons = Lessons(conversations, features, Plan(4, 6, 3), seed=3, device=CPU)
    picked = np.array([1, 4, 7, 9])
    lesson = lessons.over(picked, step=5)
    _, hidden = features.of(picked, 64)
    valid = lesson.answers.valid.view(4, 6, 3)
    seen = 0
    for row, index in enumerate(picked.tolist()):
        ids, start = conversations.ids_of(index), conversations.answer_starts[index]
        for block in range(6):
            anchor = int(lesson.blocks.anchors[row, block])
            for place in range(3):
                at = anchor + place
                if not valid[row, block, place]:
                    continue
                seen += 1
                number = (row * 6 + block) * 3 + place
                assert start <= anchor
                assert lesson.blocks.previous[row, block, place] == ids[at]
                assert lesson.answers.labels[number] == ids[at + 1]
                assert torch.equal(lesson.answers.hidden[number], hidden[row, at])
    assert seen > 30
    assert torch.equal(lessons.over(picked, step=5).blocks.anchors, lesson.blocks.anchors)


def test_every_conversation_comes_once_before_any_comes_again(teacher: Teacher) -> None:
    conversations = corpus(count=10)
    seen: list[int] = []

    class Spy:
        def of(self, picked: np.ndarray, length: int) -> tuple[torch.Tensor, torch.Tensor]:
            seen.extend(picked.tolist())
            return torch.zeros(len(picked), length, 1), torch.zeros(len(picked), length, 1)

    lessons = Lessons(conversations, Spy(), Plan(4, 2, 2), seed=0, device=CPU)
    for step in range(5):
        lessons.lesson(step)
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert seen[:10] != seen[10:]


@pytest.mark.parametrize("wishes", [{}, {"markov_tied": False}], ids=str)
def test_gradients_are_those_of_the_whole_loss(target: Path, teacher: Teacher, wishes: dict[str, object]) -> None:
    draft = random_draft(target, **wishes)
    head = read_shared(target, CPU, torch.float32).head
    lessons = Lessons(corpus(), OnlineFeatures(teacher, corpus()), Plan(3, 4, 3), seed=0, device=CPU)
    lesson = lessons.lesson(2)
    found = losses(draft(lesson.blocks), lesson.answers, Vocabulary(head, distil, chunk_rows=7), table=table_of(draft))
    found.total.backward()
    ours = {name: weight.grad.clone() for name, weight in draft.named_parameters() if weight.grad is not None}

    draft.zero_grad()
    plain_loss(draft, lesson.blocks, lesson.answers, head).backward()
    for name, weight in draft.named_parameters():
        assert weight.grad is not None, name
        torch.testing.assert_close(
            ours[name], weight.grad, atol=1e-5, rtol=1e-3, msg=lambda text, name=name: f"{name} {text}"
        )


def table_of(draft: TrainableDraft) -> torch.Tensor | None:
    return None if draft.markov_head.tied else draft.markov_head.markov_w2.weight


def plain_loss(draft: TrainableDraft, blocks: Blocks, answers: Answers, head: torch.Tensor) -> torch.Tensor:
    guesses = draft(blocks)
    logits = guesses.hidden.flatten(0, 2) @ head.T
    if guesses.inner is not None:
        logits = logits + guesses.inner.flatten(0, 2) @ table_of(draft).T
    heat = answers.temperature[:, None]
    l1 = ((logits / heat).softmax(1) - (answers.hidden @ head.T / heat).softmax(1)).abs().sum(1)
    cross_entropy = torch.nn.functional.cross_entropy(logits, answers.labels, reduction="none")
    sure = torch.nn.functional.binary_cross_entropy_with_logits(
        guesses.confidence.flatten(), (1 - l1 / 2).detach(), reduction="none"
    )
    weights = place_weights(answers.valid, 3)
    return (weights * (CROSS_ENTROPY * cross_entropy + L1 * l1 + sure)).sum()


def test_weights_in_24_bits_are_close_and_stay_what_they_are() -> None:
    weights = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * torch.logspace(-20, 4, 1000)
    kept = unpacked(packed_bytes(weights))
    assert ((kept - weights).abs() <= weights.abs() * 2**-16).all()
    assert torch.equal(unpacked(packed_bytes(kept)), kept)


@pytest.mark.parametrize(
    ("wishes", "count"),
    [
        (Wishes(num_drafts=7, mask_token_id=16), 7_813_057),
        (Wishes(5, 2, 640, markov="vanilla", markov_rank=32, markov_tied=False, mask_token_id=16), 8_126_689),
    ],
    ids=["tied", "published"],
)
def test_the_demo_models_draft_fits_into_small_files(wishes: Wishes, count: int) -> None:
    layer = LayerConfig(rope=Rope(100_000.0))
    decoder = DecoderConfig(
        *("llama", 49_152, 8192, 576, 1536, 9, 3, 64, 1e-5, "silu", 0.125),
        tied=True,
        layers=(layer,) * 30,
    )
    made = shape_for(decoder, "LlamaForCausalLM", wishes)
    assert made.wishes.target_layers == (1, 14, 27)
    draft = TrainableDraft(made, torch.zeros(1, 576))
    assert sum(weight.numel() for weight in draft.parameters()) == count
    assert 2 * count < 16 << 20  # the draft
    assert 7 * count < 60_000_000  # a run's state
