"""A server with a draft checkpoint, from its command line to its answers."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
import random_drafts as make
from by_loop import serve
from random_drafts import tensors

from corymb.models.toy_folders import write_byte_tokenizer
from corymb.scheduler.messages import Generate, Sampling

NUM_TOKENS = 24
PROMPTS = [list(range(40, 60)), list(range(40, 90)), [7, 200, 7, 200, 7]]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make.write_target(tmp_path_factory.mktemp("target"))
    write_byte_tokenizer(folder)
    return folder


def flags(target: Path, draft: Path) -> tuple[str, ...]:
    algorithm = ("--speculative-algorithm", "DSPARK", "--speculative-draft-model-path", str(draft))
    mode = ("--speculative-dspark-verify-mode", "static")  # whether drafting pays is not asked
    return (str(target), "--device", "cpu", "--dtype", "float32", *algorithm, *mode)


def test_answers_are_those_without_a_draft(serving, target: Path, tmp_path: Path) -> None:
    make.write(tmp_path, make.deepspec(), tensors())
    sampling = Sampling(max_new_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
    requests = [
        Generate(str(number), np.array(ids, np.int32).tobytes(), sampling) for number, ids in enumerate(PROMPTS)
    ]
    alone = serve(target, requests, {"dtype": "float32"})
    with serving(*flags(target, tmp_path)) as server:
        asked = {"max_new_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
        for number, ids in enumerate(PROMPTS):
            answer = server.client.post("/generate", json={"input_ids": ids, "sampling_params": asked}).json()
            assert answer["output_ids"] == alone.token_ids(str(number))
            assert answer["meta_info"]["spec_verify_ct"] > 0
        info = server.client.get("/get_server_info").json()
        assert info["speculative_num_draft_tokens"] == 4


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_target_layers": 7}, "a target of 7 layers, and this one has 4"),
        ({"markov_head_type": "rnn"}, "lacks the tensors its config.json asks for: markov_head.joint_proj.weight"),
    ],
)
def test_a_draft_of_another_model_is_one_sentence(
    servers, target: Path, tmp_path: Path, changes: dict[str, object], sentence: str
) -> None:
    make.write(tmp_path, make.deepspec(**changes), tensors())
    command = [*servers.SERVE, *flags(target, tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=servers.environment(), check=False)
    assert ended.returncode == 2, ended.stderr
    assert sentence in ended.stderr
    assert ended.stderr.count("\n") == 1, ended.stderr
