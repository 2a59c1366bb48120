"""A smaller model drafts as if it were served alone, and changes nothing of what the target says."""

from pathlib import Path

import pytest
import torch
from by_loop import serve
from drafting import ForcedWindows
from random_drafts import VOCAB, write_target
from recording import Record, Recorded
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from corymb.models.architectures import read_config
from corymb.models.errors import UnsupportedModel
from corymb.scheduler.messages import Generate, Sampling
from corymb.scheduler.windows import FullWindows
from corymb.speculative.standalone import read_standalone

NUM_DRAFTS = 3


def write_sliding(folder: Path, **changes: object) -> Path:
    torch.manual_seed(3)
    sizes: dict[str, object] = {
        "vocab_size": VOCAB,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"],
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
        "eos_token_id": 257,
    }
    Gemma3ForCausalLM(Gemma3TextConfig(**(sizes | changes))).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target"))


def requests(heat: float) -> list[Generate]:
    chooser = torch.Generator().manual_seed(2)
    shared = torch.randint(256, (13,), generator=chooser).tolist()
    made = []
    for number in range(4):
        prompt = shared * (number > 1) + torch.randint(256, (4 + 8 * number,), generator=chooser).tolist()
        sampling = Sampling(max_new_tokens=16, temperature=heat, ignore_eos=True, seed=number)
        made.append(Generate(str(number), torch.tensor(prompt, dtype=torch.int32).numpy().tobytes(), sampling))
    return made


def run(target: Path, draft: Path, heat: float, **variant: object) -> tuple[list[list[int]], list[Record]]:
    speculation = read_standalone(draft, read_config(target), context_length=256, num_drafts=NUM_DRAFTS)
    recorded = Recorded(speculation, ForcedWindows())
    windows = FullWindows(NUM_DRAFTS)
    port = serve(target, requests(heat), {"dtype": "float32", "speculation": recorded, "windows": windows} | variant)
    return [port.token_ids(str(number)) for number in range(4)], recorded.records


@pytest.mark.parametrize("heat", [0.0, 60.0])
@pytest.mark.parametrize("variant", [{"chunked_prefill_size": 8}, {"page_size": 4}], ids=str)
def test_drafts_are_what_the_model_says_alone(
    tmp_path: Path, target: Path, heat: float, variant: dict[str, object]
) -> None:
    draft = write_sliding(tmp_path)
    _, records = run(target, draft, heat, **variant)
    model = Gemma3ForCausalLM.from_pretrained(draft, dtype=torch.float32)
    assert max(len(record.drafts) for record in records) == NUM_DRAFTS
    for record in records[:: max(1, len(records) // 10)]:
        ids = torch.tensor([[*record.said, *record.drafts]])
        with torch.no_grad():
            logits = model(ids).logits[0, len(record.said) - 1 : -1]
        for place, token in enumerate(record.drafts):
            if record.logits is None:
                assert logits[place, token] > logits[place].max() - 1e-3
            else:
                torch.testing.assert_close(record.logits[place], logits[place], atol=1e-3, rtol=1e-3)


def test_the_target_as_its_own_draft_is_always_right(target: Path) -> None:
    alone = serve(target, requests(0.0), {"dtype": "float32"})
    said, records = run(target, target, 0.0, chunked_prefill_size=8)
    assert said == [alone.token_ids(str(number)) for number in range(4)]
    whole = [requests(0.0)[number].prompt for number in range(4)]
    for record in records:
        owner = next(
            index
            for index, prompt in enumerate(whole)
            if torch.frombuffer(bytearray(prompt), dtype=torch.int32).tolist() == list(record.said[: len(prompt) // 4])
        )
        rest = said[owner][len(record.said) - len(whole[owner]) // 4 :]
        assert list(record.drafts[: len(rest)]) == rest[: len(record.drafts)]


def test_what_cannot_draft_is_refused(tmp_path: Path, target: Path) -> None:
    config = read_config(target)
    other, short = (
        write_sliding(tmp_path / "a", vocab_size=300),
        write_sliding(tmp_path / "b", max_position_embeddings=128),
    )
    with pytest.raises(UnsupportedModel, match=r"300 tokens and the target 264; they must share a vocabulary"):
        read_standalone(other, config, context_length=256, num_drafts=3)
    with pytest.raises(UnsupportedModel, match=r"takes 128 tokens and the server 256; give --context-length 128"):
        read_standalone(short, config, context_length=256, num_drafts=3)
