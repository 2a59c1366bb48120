"""Real checkpoints against transformers in float32: greedy decoding token by token, and the logits behind it."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from corymb.kernels.torch_attention import TorchAttention
from corymb.models.architectures import read_config
from corymb.models.decoder import Decoder
from corymb.models.load import LoadOptions, load_model
from corymb.models.sequences import Sequences
from corymb.serve.tokenizer import load_tokenizer

pytestmark = [pytest.mark.weights, pytest.mark.timeout(900)]

LICENSE = (Path(__file__).parents[2] / "LICENSE").read_text()
LONG = [LICENSE[3000:6000], LICENSE[:5200], LICENSE[2500:]]  # longer than a window of 512 and than one chunk
SHORT = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at a temperature of",
    "1, 2, 3, 5, 8, 13,",
    "Dear Sir or Madam,\n\nI am writing to",
    "The three laws of thermodynamics are:",
    "Le chat est assis sur",
    "Question: Why is the sky blue?\nAnswer:",
    "import numpy as np\n\nx = np.",
    "She opened the door and saw",
    "In 1969, the first human",
    "Ingredients: two eggs, a cup of flour,",
    '{"name": "Ada", "age":',
    "The opposite of hot is",
    "<html>\n<head>\n<title>",
    "A list of the planets, from the Sun outwards:",
    "To be, or not to be,",
]
NUM_OUTPUTS = 64
CHUNK = 256


@pytest.mark.parametrize("checkpoint", ["smollm2", "gemma3"])
def test_greedy_decoding_equals_transformers(checkpoint: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(checkpoint)
    tokenizer = load_tokenizer(folder)
    prompts = {row: tokenizer.encode(text) for row, text in enumerate([*SHORT, *LONG], start=1)}
    assert len(prompts) >= 20
    assert sum(len(prompt) > 2 * CHUNK for prompt in prompts.values()) == len(LONG)

    outputs, logits = decode(load_model(folder, read_config(folder), LoadOptions()), prompts)
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = reference_logits(reference, {row: [*prompts[row], *outputs[row]] for row in prompts}, prompts)
    for row in prompts:
        # Each token is what transformers picks after those before it: so are all of them.
        assert outputs[row] == expected[row].argmax(-1).tolist(), row
        assert (logits[row] - expected[row]).abs().max() < 1e-3, row


@torch.inference_mode()
def decode(model: Decoder, prompts: dict[int, list[int]]) -> tuple[dict[int, list[int]], dict[int, torch.Tensor]]:
    """Greedy outputs of each row, and the logits they were picked from; all rows at once, long prompts in chunks."""
    context_length = max(map(len, prompts.values())) + NUM_OUTPUTS
    sequences = Sequences.empty(model.attention_specs, num_rows=len(prompts) + 1, context_length=context_length)
    attention = TorchAttention()
    known = {row: list(prompt) for row, prompt in prompts.items()}
    logits: dict[int, list[torch.Tensor]] = {row: [] for row in prompts}
    while running := [row for row in prompts if len(logits[row]) < NUM_OUTPUTS]:
        done = sequences.lengths
        tokens = {row: known[row][done[row] : done[row] + CHUNK] for row in running}
        hidden = sequences.step(model, attention, tokens)
        last = hidden[torch.tensor([len(ids) for ids in tokens.values()]).cumsum(0) - 1]
        ready = [index for index, row in enumerate(running) if done[row] == len(known[row])]
        for index, of_row in zip(ready, model.logits(last[ready]), strict=True):
            known[running[index]].append(int(of_row.argmax()))
            logits[running[index]].append(of_row)
    return {row: ids[-NUM_OUTPUTS:] for row, ids in known.items()}, {row: torch.stack(of) for row, of in logits.items()}


@torch.inference_mode()
def reference_logits(
    reference: PreTrainedModel, sequences: dict[int, list[int]], prompts: dict[int, list[int]]
) -> dict[int, torch.Tensor]:
    """What transformers expects at each output's place, given the tokens before it."""
    logits = {}
    by_length = sorted(sequences, key=lambda row: len(sequences[row]))
    for rows in (by_length[: -len(LONG)], *([row] for row in by_length[-len(LONG) :])):
        longest = max(len(sequences[row]) for row in rows)
        # What pads a sequence comes after it, where causal attention never looks.
        padded = torch.tensor([sequences[row] + [0] * (longest - len(sequences[row])) for row in rows])
        hidden = reference.model(padded, use_cache=False).last_hidden_state
        for index, row in enumerate(rows):
            first = len(prompts[row]) - 1
            logits[row] = reference.lm_head(hidden[index, first : first + NUM_OUTPUTS])
    return logits
