"""What block drafts propose in the real loop, against one block computed at once by transformers and plain torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import random_drafts
import torch
from by_loop import serve, serve_rounds
from plain_draft import PlainDraft
from recording import Record, Recorded
from transformers import LlamaForCausalLM

from corymb.models.architectures import read_config
from corymb.models.second_tier import SecondTier
from corymb.scheduler.messages import Generate, Sampling
from corymb.scheduler.windows import FullWindows
from corymb.speculative.block_speculation import BlockSpeculation, read_block_speculation
from corymb.speculative.draft_dialects import Kind
from corymb.speculative.draft_files import write_draft
from corymb.speculative.draft_shape import Wishes, shape_for
from corymb.speculative.trainable import Blocks, TrainableDraft, initialise

LAYERS = (0, 2)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_drafts.write_target(tmp_path_factory.mktemp("target"))


@dataclass(frozen=True)
class Case:
    """A folder to write."""

    config: dict[str, Any]
    weights: dict[str, torch.Tensor]
    kind: Kind = "DSPARK"
    num_drafts: int | None = None


SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
make, tensors = random_drafts, random_drafts.tensors


def tied(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    for name in ("markov_w1", "markov_w2"):
        weights.pop(f"markov_head.{name}.weight")
    generator = torch.Generator().manual_seed(8)
    for name in ("tied_in", "tied_out"):
        weights[f"markov_head.{name}.weight"] = 0.3 * torch.randn(make.RANK, make.HIDDEN, generator=generator)
    return weights


CASES = {
    "DeepSpec": Case(make.deepspec(), tensors()),
    "DeepSpec, gated": Case(make.deepspec(markov_head_type="gated"), tensors(markov="gated")),
    "DeepSpec, recurrent": Case(make.deepspec(markov_head_type="rnn"), tensors(markov="rnn")),
    "DeepSpec, tied": Case(make.deepspec(markov_head_type="gated", markov_tied=True), tied(tensors(markov="gated"))),
    "DeepSpec, unsure": Case(make.deepspec(enable_confidence_head=False), tensors(confidence=False)),
    "fewer drafts": Case(make.deepspec(), tensors(), num_drafts=2),
    "SpecForge": Case(make.specforge(), tensors()),
    "DFlash": Case(make.dflash(), tensors(markov=None, confidence=False), "DFLASH"),
    "bundled": Case(make.bundled(), make.staged(tensors())),
    "speculators": Case(make.speculators(), tensors()),
    "speculators, anchor unused": Case(make.speculators(sample_from_anchor=False, block_size=4), tensors()),
    "reduced vocabulary": Case(make.speculators(draft_vocab_size=132), tensors(drafted=132)),
    "sliding": Case(make.deepspec(**SLIDING), tensors()),
    "sliding both ways": Case(make.deepspec(**SLIDING, sliding_window_non_causal=True), tensors()),
}


def read(case: Case, folder: Path, target: Path) -> BlockSpeculation:
    make.write(folder, case.config, case.weights)
    return read_block_speculation(folder, case.kind, read_config(target), num_drafts=case.num_drafts)


def requests(*, seeded: bool) -> list[Generate]:
    """Greedy ones and warm ones; of those, so warm that most drafts are accepted. Some share a beginning."""
    chooser = torch.Generator().manual_seed(1)
    shared = torch.randint(256, (17,), generator=chooser).int().numpy()
    made = []
    for number in range(4):
        own = torch.randint(256, (5 + 9 * number,), generator=chooser).int().numpy()
        heat = 0.0 if number % 2 else 60.0
        sampling = Sampling(max_new_tokens=20, temperature=heat, ignore_eos=True, seed=number, seeded=seeded)
        prompt = (*(shared if number > 1 else ()), *own)
        made.append(Generate(str(number), torch.tensor(prompt, dtype=torch.int32).numpy().tobytes(), sampling))
    return made


def run(target: Path, speculation: BlockSpeculation, *, seeded: bool = False, **variant: object) -> list[Record]:
    recorded = Recorded(speculation)
    windows = FullWindows(speculation.num_drafts)
    serve(target, requests(seeded=seeded), {"dtype": "float32", "speculation": recorded, "windows": windows} | variant)
    assert recorded.records
    return recorded.records


@pytest.mark.parametrize("name", CASES)
def test_drafts_are_those_of_one_whole_forward(tmp_path: Path, target: Path, name: str) -> None:
    case = CASES[name]
    speculation = read(case, tmp_path, target)
    config = speculation.config
    assert config.layers == LAYERS
    records = run(target, speculation, chunked_prefill_size=8)
    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)
    weights = {name: tensor for name, tensor in case.weights.items() if name != "embed_tokens.weight"}
    if config.bundled:
        weights = tensors()
    plain = PlainDraft(config, weights, model.model.embed_tokens.weight.detach())
    steps = [len(later.said) - len(one.said) for one, later in pairs(records)]
    assert max(steps) > 2, "too few drafts were accepted for the test to show anything"
    for record in records[:: max(1, len(records) // 12)]:
        logits, confidence = plain.guess(features_of(model, record), [record.said[-1], *record.drafts[:-1]])
        check(record, logits, confidence, reduced=config.reduced)


def features_of(model: LlamaForCausalLM, record: Record) -> torch.Tensor:
    """What the target thinks of all that lies before the anchor."""
    with torch.no_grad():
        hidden = model.model(torch.tensor([record.said[:-1]]), output_hidden_states=True).hidden_states
    return torch.cat([hidden[layer + 1][0] for layer in LAYERS], dim=1)


def pairs(records: list[Record]) -> list[tuple[Record, Record]]:
    """Each proposal and the next of the same request."""
    found = []
    for index, one in enumerate(records):
        later = [two for two in records[index + 1 :] if two.said[: len(one.said)] == one.said]
        found += [(one, later[0])] if later else []
    return found


def check(record: Record, logits: torch.Tensor, confidence: torch.Tensor | None, *, reduced: bool) -> None:
    step = 2 if reduced else 1  # it drafts the first of every two tokens
    if record.logits is not None:
        torch.testing.assert_close(record.logits[:, ::step], logits, atol=1e-3, rtol=1e-3)
        assert not reduced or (record.logits[:, 1::2] == -torch.inf).all()
    for token, row in zip(record.drafts, logits, strict=True):
        assert token % step == 0
        if record.logits is None:
            assert row[token // step] > row.max() - 1e-3
    assert (record.confidence is None) == (confidence is None)
    if confidence is not None:
        torch.testing.assert_close(record.confidence, confidence, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("variant", [{"page_size": 4}, {"overlap_depth": 0}, {"chunked_prefill_size": 6}], ids=str)
def test_cached_prefixes_change_no_draft(tmp_path: Path, target: Path, variant: dict[str, object]) -> None:
    speculation = read(CASES["DeepSpec, gated"], tmp_path, target)
    said = {}
    for cached in (True, False):
        records = run(target, speculation, seeded=True, enable_prefix_cache=cached, max_running_requests=2, **variant)
        said[cached] = {record.said: record.drafts for record in records}
    assert said[True] == said[False]


def test_drafts_come_back_from_host_memory_with_their_prefixes(tmp_path: Path, target: Path) -> None:
    """A pool of one request's length: each prefix is pushed out before it is wanted again."""
    speculation = read(CASES["DeepSpec"], tmp_path, target)
    tier = {"second_tier": SecondTier(ratio=8.0), "max_total_tokens": 90, "max_running_requests": 1}
    said = []
    for variant in (tier, {"enable_prefix_cache": False}):
        recorded = Recorded(speculation)
        options = {"dtype": "float32", "speculation": recorded, "windows": FullWindows(3)} | variant
        *_, last = serve_rounds(target, [requests(seeded=True)] * 2, options)
        said.append({record.said: record.drafts for record in recorded.records})
        assert last.stats is not None
        assert (last.stats.host_loaded.get("full", 0) > 0) == ("second_tier" in variant)
    assert said[0] == said[1]


@pytest.mark.parametrize("wishes", [{}, {"markov": "vanilla", "markov_tied": False}], ids=str)
def test_a_trained_draft_serves_what_it_learned(tmp_path: Path, target: Path, wishes: dict[str, Any]) -> None:
    config, model = read_config(target), LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)
    assert config.decoder is not None
    sizes = {"num_drafts": 3, "num_layers": 2, "intermediate_size": 24, "markov_rank": 6, "mask_token_id": 258}
    shape = shape_for(config.decoder, config.architecture, Wishes(**sizes, target_layers=LAYERS, **wishes))
    embedding = model.model.embed_tokens.weight.detach()
    draft = TrainableDraft(shape, embedding)
    initialise(draft, seed=1)
    generator = torch.Generator().manual_seed(2)
    for weight in draft.parameters():  # nothing silent, and as the file holds it
        weight.data.add_(0.2 * torch.randn(weight.shape, generator=generator))
        weight.data.copy_(weight.data.bfloat16())
    write_draft(tmp_path, draft, num_anchors=4)
    for record in run(target, read_block_speculation(tmp_path, "DSPARK", config), chunked_prefill_size=8)[::6]:
        previous = torch.tensor([record.said[-1], *record.drafts[:-1]])
        anchor = torch.tensor([[len(record.said) - 1]])
        with torch.no_grad():
            guesses = draft(Blocks(features_of(model, record)[None], anchor, previous[None, None]))
            logits = guesses.hidden[0, 0] @ embedding.T
            if guesses.inner is not None:
                logits += guesses.inner[0, 0] @ draft.markov_head.markov_w2.weight.T
        check(record, logits, guesses.confidence[0, 0].sigmoid(), reduced=False)
