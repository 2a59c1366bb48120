"""Features in pairs under DSPARK: each pair of fields gives the same with a draft as without, over a random target.

Its draft is as random, so that most windows are refused somewhere: whatever looks at tokens must not see those.
`tests/http/test_pairs.py` does the same under NGRAM, over a model whose right answers are known.
"""

import re

import pytest
import random_drafts as make
from random_drafts import tensors

from corymb.models.toy_folders import write_byte_tokenizer
from tests.http.test_pairs import COMMON, PAIRS, together, whole

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = make.write_target(tmp_path_factory.mktemp("target"))
    write_byte_tokenizer(folder)
    return folder


def test_every_pair_gives_the_same_with_a_draft(serving, target, tmp_path) -> None:
    make.write(tmp_path, make.deepspec(), tensors())
    common = (str(target), "--device", "cpu", "--dtype", "float32", *COMMON[2:])
    draft = ("--speculative-algorithm", "DSPARK", "--speculative-draft-model-path", str(tmp_path))
    with serving(*common) as server:
        expected = together(lambda pair: whole(server, pair))
    with serving(*common, *draft, "--speculative-dspark-verify-mode", "static") as server:
        answers = together(lambda pair: whole(server, pair))
        said = server.client.get("/metrics").text
    verified, accepted = (sum(map(float, re.findall(rf"^corymb_drafts_{kind}_total{{.*}} (.+)$", said, re.MULTILINE)))
                          for kind in ("verified", "accepted"))  # fmt: skip
    assert verified > accepted > 0
    pairs = zip(PAIRS, answers, expected, strict=True)
    assert {pair: (a, b) for pair, a, b in pairs if not alike(a, b)} == {}


def alike(one, other) -> bool:
    """Byte-equal, but for the last digits of logprobs: windows are other shapes of matrices."""
    if isinstance(one, str) or isinstance(other, str) or len(one) != len(other):
        return one == other
    return all(same_choice(a, b) for a, b in zip(one, other, strict=True))


def same_choice(one: dict, other: dict) -> bool:
    (texts, tokens, values), (others, other_tokens, other_values) = map(apart, (one, other))
    return (texts, tokens) == (others, other_tokens) and values == pytest.approx(other_values, abs=1e-3)


def apart(choice: dict) -> tuple[dict, list[str], list[float]]:
    entries = choice["logprobs"] or []
    rest = {name: value for name, value in choice.items() if name != "logprobs"}
    return rest, [entry["token"] for entry in entries], [entry["logprob"] for entry in entries]
