"""A server that speculates answers as one that does not: stops inside a run of drafts, limits, grammars.

The tape model says what its prompt spells, so n-grams draft nearly all of it rightly; where a grammar forbids what the
tape says, they draft wrongly.
"""

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.http.client import chat, complete, native, tape

pytestmark = pytest.mark.server

COMMON = ("--context-length", "1024", "--reasoning-parser", "qwen3")
SPECULATING = ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "6")
SCHEMA = {
    "type": "object",
    "properties": {
        "who": {"enum": ["Ana", "Бо", "陈😀"]},
        "note": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}]},
        "code": {"type": "string", "pattern": "^[A-Z]{2}-\\d{3}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["who", "note", "code", "age"],
    "additionalProperties": False,
}
FORMAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}}
INVALID = json.dumps({"who": "Zed", "note": "longer", "code": "ab-1", "age": 121, "more": 1}, ensure_ascii=False)


# Steps that cost the same whatever is verified in them: drafting pays, however busy the machine is.
COSTS = {"bias_seconds": 1.0, "bs_probes": [1], "alpha_seconds": [0.001], "m_probes": [1], "theta_seconds": [0.001]}


@pytest.fixture(scope="module", params=["compact", "static", "cap-accept"])
def speculating(serving, request, tmp_path_factory):
    flags = ["--speculative-dspark-verify-mode", request.param]
    if request.param != "static":
        table = tmp_path_factory.mktemp("costs") / "costs.json"
        table.write_text(json.dumps(COSTS))
        flags += ["--speculative-dspark-sps-table-path", str(table)]
    with serving("corymb/tape", *COMMON, *SPECULATING, *flags) as server:
        yield server


@pytest.fixture(scope="module")
def plain(serving):
    with serving("corymb/tape", *COMMON) as server:
        yield server


def total(server, name: str) -> float:
    found = re.findall(rf"^corymb_{name}_total{{[^}}]*}} ([\d.]+)$", server.client.get("/metrics").text, re.MULTILINE)
    return sum(map(float, found))


STOPS = [
    ("abSxyz", {"max_tokens": 5, "stop": ["S"]}, ("ab", "stop", 3)),
    ("ab<eos>xyz", {"max_tokens": 5}, ("ab", "stop", 3)),
    ("abcdeS", {"max_tokens": 5, "stop": ["S"]}, ("abcde", "length", 5)),
    ("STOPabcdefghij", {"max_tokens": 20, "stop": ["STOP"]}, ("", "stop", 4)),
    ("abcSTOPdef", {"max_tokens": 20, "stop": ["STOP"]}, ("abc", "stop", 7)),
    ("abcSTdef<eos>", {"max_tokens": 20, "stop": ["STOP"]}, ("abcSTdef", "stop", 9)),
    ("aSbSc", {"max_tokens": 20, "stop": ["S"], "min_tokens": 3}, ("aSb", "stop", 4)),
    ("ab<eos>xyz<eos>", {"max_tokens": 20, "min_tokens": 4}, None),
    ("abcdef", {"max_tokens": 1}, ("a", "length", 1)),
    ("abcdef", {"max_tokens": 20, "stop_token_ids": [ord("d")]}, ("abc", "stop", 4)),
]


@pytest.mark.parametrize(("text", "fields", "expected"), STOPS)
def test_what_ends_an_answer_inside_a_run_of_drafts_ends_it(plain, speculating, text, fields, expected) -> None:
    answers = [complete(server, tape(text), **fields).json() for server in (plain, speculating)]
    said = [
        (each["choices"][0]["text"], each["choices"][0]["finish_reason"], each["usage"]["completion_tokens"])
        for each in answers
    ]
    assert said[0] == said[1]
    assert expected is None or said[1] == expected


def test_drafts_are_accepted_and_counted(speculating) -> None:
    before = total(speculating, "drafts_accepted")
    text = "one two three one two three one two three"
    answer = native(speculating, tape(text), {"max_new_tokens": 40}).json()
    assert answer["text"] == text[:40]
    told = answer["meta_info"]
    assert told["spec_num_correct_drafts"] > 0
    assert told["spec_accept_length"] == 1 + told["spec_num_correct_drafts"] / told["spec_verify_ct"]
    speculating.wait_for(lambda: total(speculating, "drafts_accepted") > before, 30)
    metrics = speculating.client.get("/metrics").text
    assert "corymb_accept_length{" in metrics
    foreseen = [
        float(re.search(rf"^corymb_step_{name}_count{{.*}} (.+)$", metrics, re.MULTILINE)[1])
        for name in ("predicted_seconds", "actual_seconds", "prediction_error")
    ]
    assert foreseen[0] == foreseen[1] == foreseen[2]
    is_static = speculating.client.get("/get_server_info").json()["speculative_dspark_verify_mode"] == "static"
    assert (foreseen[0] == 0) == is_static


GRAMMARS = [
    (INVALID, FORMAT),
    (f"<think>hm, {INVALID}</think>```json {INVALID}", FORMAT),
    ("12ab", {"regex": "[0-9]{4}"}),
    ("12ab12ab", {"regex": "[0-9]{2}[a-c]{4}"}),
    (json.dumps({"who": "陈😀", "note": None, "code": "AB-123", "age": 7}, ensure_ascii=False), FORMAT),
]


@pytest.mark.parametrize(("text", "fields"), GRAMMARS)
def test_an_answer_follows_its_grammar_whatever_is_drafted(plain, speculating, text, fields) -> None:
    answers = [chat(server, tape(text), max_tokens=200, **fields) for server in (plain, speculating)]
    messages = [answer.json()["choices"][0] for answer in answers]
    assert messages[0] == messages[1]
    assert messages[1]["finish_reason"] == "stop"


def test_drafts_under_a_grammar_are_accepted_where_it_allows_them(speculating) -> None:
    answer = native(speculating, tape("ab ab ab ab ab ab no"), {"max_new_tokens": 40, "regex": "(ab ){8}"}).json()
    assert answer["text"] == "ab " * 8
    assert answer["meta_info"]["spec_num_correct_drafts"] > 0


def test_grammars_plain_requests_and_one_that_is_cancelled_do_not_mix(plain, speculating) -> None:
    asks = [*GRAMMARS, *[(f"plain {n} plain {n} plain {n}", {}) for n in range(8)]] * 2

    def ask(server, index: int):
        text, fields = asks[index]
        return chat(server, tape(text), max_tokens=120, **fields).json()["choices"][0]

    def cancel() -> None:
        body = {"prompt": tape("x y " * 60), "max_tokens": 200, "stream": True}
        with speculating.client.stream("POST", "/v1/completions", json=body) as stream:
            next(stream.iter_lines())

    with ThreadPoolExecutor(len(asks) + 1) as pool:
        cancelled = pool.submit(cancel)
        said = list(pool.map(lambda index: ask(speculating, index), range(len(asks))))
        cancelled.result()
    assert said == [ask(plain, index) for index in range(len(asks))]


def test_a_seed_gives_the_same_tokens_with_drafts_and_without(plain, speculating) -> None:
    fields = {"temperature": 1.5, "seed": 11, "logit_bias": {str(ord(c)): 60 for c in "abc"}, "max_tokens": 60}
    said = [
        complete(server, tape("abcabcabc" * 6), **fields).json()["choices"][0]["text"]
        for server in (plain, speculating)
    ]
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--speculative-num-draft-tokens", "4"), "is for --speculative-algorithm"),
        (("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "1"), "counts the token"),
        (("--speculative-algorithm", "NGRAM", "--enable-mixed-chunk", "--chunked-prefill-size", "64"), "mixed-chunk"),
        (("--speculative-algorithm", "DSPARK"), "needs a draft for this model"),
        (("--speculative-algorithm", "NGRAM", "--speculative-dspark-sps-table-path", "/none"), "not a cost table"),
    ],
)
def test_wishes_that_cannot_be_met_are_refused(servers, flags, sentence) -> None:
    command = [sys.executable, "-P", "-m", "corymb.serve", "corymb/tape", *flags]
    ended = subprocess.run(command, env=servers.environment(), capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2, ended.stderr
    assert sentence in ended.stderr
