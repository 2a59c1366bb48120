"""Drafts for models that carry a state: the same tokens as without, the same hits in the cache, and little memory."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import random_drafts
import torch
from by_loop import FakePort, serve_rounds
from drafting import Drafts, ForcedBudgets, ForcedWindows, ScriptedDrafter
from recording import Recorded
from test_families import CASES, make_reference
from test_recurrent_config import FALCON_H1_05B, LFM2_12B, QWEN3_NEXT_80B, QWEN35_VISION, decoder_of
from test_recurrent_exactness import prompts

from corymb.models.architectures import read_config
from corymb.models.mixers import record_specs, state_specs
from corymb.models.speculation import Speculation
from corymb.scheduler.messages import Generate, Sampling
from corymb.scheduler.windows import FullWindows
from corymb.speculative.block_speculation import read_block_speculation
from corymb.speculative.ngram import NgramSpeculation
from corymb.speculative.standalone import read_standalone

FAMILIES = ("qwen3-next", "falcon-h1, multiplied", "lfm2")
VARIANTS: dict[str, dict[str, object]] = {
    "snapshots every 64": {"state_interval": 64},
    "pages of 16, small pool": {"page_size": 16, "max_total_tokens": 900, "max_running_requests": 3},
    "retraction every 7 steps, chunks": {"test_retract_interval": 7, "state_interval": 64, "chunked_prefill_size": 64},
    "no overlap, few states": {"overlap_depth": 0, "max_states": 5, "state_interval": 64, "max_running_requests": 3},
}
NUM_DRAFTS, NUM_TOKENS = 7, 40
OPTIONS = {"dtype": "float32"}
Talk = Sequence[Sequence[list[int]]]  # prompts, by turn


@cache
def folder(family: str, place: Path) -> Path:
    path = place / family.replace(" ", "-")
    make_reference(*CASES[family]).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    place = tmp_path_factory.mktemp("families")
    return lambda family: folder(family, place)


def ask(rid: int, prompt: list[int]) -> Generate:
    sampling = Sampling(max_new_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
    return Generate(rid=str(rid), prompt=np.array(prompt, np.int32).tobytes(), sampling=sampling)


def said(port: FakePort) -> list[list[int]]:
    return [port.token_ids(str(index)) for index in range(len(port.outputs))]


def cached(port: FakePort) -> list[int]:
    return [port.outputs[str(index)][0].num_cached_tokens for index in range(len(port.outputs))]


def talk(folder: Path, turns: Talk, variant: dict[str, object]) -> list[FakePort]:
    return serve_rounds(folder, [[ask(*each) for each in enumerate(turn)] for turn in turns], OPTIONS | variant)


@cache
def plain(folder: Path) -> tuple[Talk, list[list[list[int]]]]:
    """Two turns of conversations, and what plain decoding says."""
    first = prompts()[::2]
    answers = said(talk(folder, [first], {})[0])
    second = [[*prompt, *answer, 5, 6] for prompt, answer in zip(first, answers, strict=True)]
    return [first, second], [answers, said(talk(folder, [second], {})[0])]


class Continuing:
    """Drafts what comes next, but for some places."""

    def __init__(self, turns: Talk, answers: list[list[list[int]]]) -> None:
        self._whole = [
            [*prompt, *answer]
            for turn, given in zip(turns, answers, strict=True)
            for prompt, answer in zip(turn, given, strict=True)
        ]

    def __call__(self, known: list[int], count: int) -> list[int]:
        rest = max((one[len(known) :] for one in self._whole if one[: len(known)] == known), key=len, default=[])
        drafts = [*rest, *[3] * count][:count]
        return [4 if (len(known) + place) % 11 in (3, 8) else draft for place, draft in enumerate(drafts)]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_drafts_change_no_token(saved: Callable[[str], Path], family: str, variant: str) -> None:
    turns, answers = plain(saved(family))
    windows, say = ForcedBudgets(NUM_DRAFTS), Continuing(turns, answers)
    speculation = Drafts(lambda num_rows: ScriptedDrafter(say, NUM_DRAFTS, num_rows=num_rows), num_drafts=NUM_DRAFTS)
    ports = talk(saved(family), turns, VARIANTS[variant] | {"speculation": speculation, "windows": windows})
    assert [said(port) for port in ports] == answers
    assert windows.num_accepted > 100
    if "retraction" not in variant and "few" not in variant:
        assert sum(cached(ports[1])) > 200, "a turn found little of the one before"


@pytest.mark.parametrize("family", [*FAMILIES, "qwen3.5"])
def test_drafts_from_what_was_said_change_no_token(saved: Callable[[str], Path], family: str) -> None:
    turns, answers = plain(saved(family))
    options = {"speculation": NgramSpeculation(NUM_DRAFTS), "windows": FullWindows(NUM_DRAFTS), "state_interval": 64}
    assert [said(port) for port in talk(saved(family), turns, options)] == answers


@pytest.mark.parametrize(
    ("config", "least"), [(QWEN3_NEXT_80B, 6), (QWEN35_VISION, 6), (FALCON_H1_05B, 6), (LFM2_12B, 2)]
)
def test_records_take_less_than_snapshots(tmp_path: Path, config: dict[str, object], least: float) -> None:
    """Of eight tokens a step. What a short convolution carries is two inputs, and its record is one."""
    decoder = decoder_of(tmp_path, config)
    of_state, of_record = (
        8 * sum(spec.size_bytes(torch.bfloat16) for spec in specs(decoder)) for specs in (state_specs, record_specs)
    )
    print(
        f"{config['architectures']}: 8 snapshots {of_state:,} bytes, records {of_record:,}, {of_state / of_record:.1f}"
    )
    assert of_state >= least * of_record


SMALL = {"vocab_size": random_drafts.VOCAB, "hidden_size": random_drafts.HIDDEN, "num_hidden_layers": 4}
SHORT = {"num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("qwen3-next", "DSPARK"),
        ("falcon-h1", "DSPARK"),
        ("lfm2", "DSPARK"),
        ("falcon-h1", "DFLASH"),
        ("qwen3-next", "STANDALONE"),
    ],
)
def test_models_that_draft_change_no_token(tmp_path: Path, family: str, kind: str) -> None:
    name, changes = CASES[family]
    small = tmp_path / "target"
    make_reference(name, {**changes, **SMALL, **SHORT}).save_pretrained(small)
    turns = [prompts()[::4]] * 2
    speculation: Speculation
    match kind:
        case "STANDALONE":
            draft = random_drafts.write_target(tmp_path / "draft")
            speculation = read_standalone(draft, read_config(small), context_length=256, num_drafts=3)
        case "DFLASH":
            random_drafts.write(tmp_path, random_drafts.dflash(), random_drafts.tensors(markov=None, confidence=False))
            speculation = read_block_speculation(tmp_path, "DFLASH", read_config(small))
        case _:
            random_drafts.write(tmp_path, random_drafts.deepspec(), random_drafts.tensors())
            speculation = read_block_speculation(tmp_path, "DSPARK", read_config(small))
    recorded = Recorded(speculation, ForcedWindows())
    variant = {"state_interval": 64, "chunked_prefill_size": 64}
    options = variant | {"speculation": recorded, "windows": FullWindows(speculation.num_drafts)}
    answers = [said(port) for port in talk(small, turns, variant)]
    assert [said(port) for port in talk(small, turns, options)] == answers
    assert len(recorded.records) > 50
