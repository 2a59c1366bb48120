"""Scores, ranks and decisions: the probabilities of single tokens."""

import json
import math

import httpx
import pytest

from corymb.serve import rerank
from corymb.serve.labels import softmax
from corymb.serve.questions import asked, read_questions
from tests.http.client import post, refused, tape
from tests.http.conftest import simulated
from tests.http.simulator import Simulator

A, B, C = b"ABC"
MOST, NEXT, REST = math.exp(-0.3219), math.exp(-1.3219), math.exp(-10.3219)


def ok(response: httpx.Response) -> dict:
    assert response.status_code == 200, response.text
    return response.json()


def near(numbers, expected) -> bool:
    return numbers == pytest.approx(expected, abs=1e-3)


# Scores.


def score(server, **fields) -> httpx.Response:
    return post(
        server, "/v1/score", {"query": "TAPE ", "items": ['"A"', '"B"'], "label_token_ids": [A, B, C], **fields}
    )


def test_scores_are_the_probabilities_of_the_labels(tape_server) -> None:
    answer = ok(score(tape_server))
    assert near(answer["scores"][0], [MOST, NEXT, REST])
    assert near(answer["scores"][1], [REST, MOST, NEXT])
    assert answer["usage"]["prompt_tokens"] == 2 * len('TAPE "A"')
    softened = ok(score(tape_server, apply_softmax=True))["scores"]
    assert [sum(each) for each in softened] == pytest.approx([1, 1])
    assert near(softened[0], [each / (MOST + NEXT + REST) for each in (MOST, NEXT, REST)])


def test_a_label_that_ends_the_answer_has_its_probability(tape_server) -> None:
    assert near(ok(score(tape_server, items=['""'], label_token_ids=[257]))["scores"][0], [MOST])


def test_items_may_come_first_and_as_ids(tape_server) -> None:
    ids = {"query": list(b'"A"'), "items": [list(b"TAPE "), list(b"xTAPE ")], "item_first": True}
    assert near(ok(score(tape_server, **ids))["scores"][0], [MOST, NEXT, REST])
    text = ok(score(tape_server, query='"A"', items=["TAPE ", "xTAPE "], item_first=True))
    assert text["scores"] == ok(score(tape_server, **ids))["scores"]


REFUSED_SCORES = [
    ({"query": None}, "query"),
    ({"query": ["a", "b"]}, "query"),
    ({"query": 5}, "query"),
    ({"items": None}, "items"),
    ({"items": []}, "items"),
    ({"items": [[1]]}, "items"),
    ({"items": ["a", 5]}, "items"),
    ({"items": [""], "query": ""}, "items"),
    ({"label_token_ids": None}, "label_token_ids"),
    ({"label_token_ids": []}, "label_token_ids"),
    ({"label_token_ids": [A, A]}, "label_token_ids"),
    ({"label_token_ids": [264]}, "label_token_ids"),
    ({"label_token_ids": list(range(264)) * 4}, "label_token_ids"),
    ({"apply_softmax": 1}, "apply_softmax"),
    ({"query": "a" * (1 << 17)}, "items"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED_SCORES, ids=lambda value: json.dumps(value)[:50])
def test_scores_that_are_refused(tape_server, fields, param) -> None:
    refused(score(tape_server, **fields), 400, param=param)


def test_shares_of_labels_that_cannot_come() -> None:
    assert softmax([-math.inf, -math.inf]) == [0.5, 0.5]
    assert softmax([0.0, -math.inf]) == [1.0, 0.0]
    assert softmax([-1000.0, -1001.0], temperature=100) == pytest.approx([0.5025, 0.4975], abs=1e-4)


# Decisions.

CHOICE = {"id": "c", "type": "choice", "question": "Which?", "options": ["red", {"name": "blue", "description": "sky"}]}
SCORE = {"id": "s", "type": "score", "question": "How good?", "levels": 3}
YES_NO = {"id": "y", "type": "yes_no", "question": "Is it?", "no": "it is not"}


def decide(server, *questions, given="x", **fields) -> httpx.Response:
    return post(server, "/v1/decisions", {"input": given, "questions": list(questions), **fields})


def test_decisions_of_a_model_without_an_opinion(uniform_server) -> None:
    answer = ok(decide(uniform_server, CHOICE, SCORE, YES_NO))
    choice, rated, yes_no = answer["decisions"]
    assert near(choice["probabilities"]["red"], 0.5)
    assert near(choice["label_mass"], 2 / 264)
    assert choice["choice"] == "red"
    assert near(list(rated["probabilities"].values()), [1 / 3] * 3)
    assert near(rated["score"], 1)
    assert set(yes_no["probabilities"]) == {"yes", "no"}
    assert answer["prompt_format_version"] == 1


@pytest.mark.parametrize("said", ["A", "B"])
def test_a_decision_follows_the_next_token(simulated_tape, said) -> None:
    (decision,) = ok(decide(simulated_tape, CHOICE, given=tape(said)))["decisions"]
    assert decision["choice"] == {"A": "red", "B": "blue"}[said]
    assert near(decision["label_mass"], MOST + NEXT if said == "A" else MOST + REST)


def test_temperature_scales_probabilities_only(simulated_tape) -> None:
    (cold,) = ok(decide(simulated_tape, CHOICE, given=tape("A"), temperature=0.1))["decisions"]
    (hot,) = ok(decide(simulated_tape, CHOICE, given=tape("A"), temperature=100))["decisions"]
    assert cold["probabilities"]["red"] > 0.99
    assert hot["probabilities"]["red"] < 0.51
    assert cold["label_mass"] == hot["label_mass"]


def test_the_model_sees_the_prompt_that_is_told(simulated_tape) -> None:
    (decision,) = ok(decide(simulated_tape, CHOICE, return_prompt_token_ids=True))["decisions"]
    text = post(simulated_tape, "/detokenize", {"tokens": decision["prompt_token_ids"]}).json()["text"]
    assert asked("x", read_questions("questions", [CHOICE])[0]) in text
    assert "A: red\nB: blue (sky)" in text


def test_input_may_be_any_json(simulated_tape) -> None:
    (decision,) = ok(decide(simulated_tape, YES_NO, given={"a": [1]}, return_prompt_token_ids=True))["decisions"]
    assert '{"a":[1]}' in post(simulated_tape, "/detokenize", {"tokens": decision["prompt_token_ids"]}).json()["text"]


REFUSED_DECISIONS = [
    ({"input": None}, "input"),
    ({"questions": None}, "questions"),
    ({"questions": []}, "questions"),
    ({"questions": [5]}, "questions"),
    ({"questions": [{"type": "essay"}]}, "questions"),
    ({"questions": [{"type": ["choice"]}]}, "questions"),
    ({"questions": [{"type": "choice", "question": "?"}]}, "questions"),
    ({"questions": [{"type": "choice", "question": "?", "options": ["a"]}]}, "questions"),
    ({"questions": [{"type": "choice", "question": "?", "options": ["a", "a"]}]}, "questions"),
    ({"questions": [{"type": "choice", "question": "?", "options": ["a", 5]}]}, "questions"),
    ({"questions": [{"type": "choice", "question": "?", "options": [str(n) for n in range(27)]}]}, "questions"),
    ({"questions": [{"type": "score", "question": "?", "levels": 11}]}, "questions"),
    ({"questions": [{"type": "score", "question": "?", "levels": 2.5}]}, "questions"),
    ({"questions": [{**YES_NO, "yes": 0}]}, "questions"),
    ({"questions": [{**YES_NO, "id": 5}]}, "questions"),
    (
        {"questions": [{"type": "choice", "question": "?", "options": [{"name": "a", "description": []}, "b"]}]},
        "questions",
    ),
    ({"questions": [{"type": "score", "question": "?", "levels": True}]}, "questions"),
    ({"questions": [{"type": "yes_no"}]}, "questions"),
    ({"questions": [YES_NO, YES_NO]}, "questions"),
    ({"temperature": 0}, "temperature"),
    ({"prompt_format_version": 2}, "prompt_format_version"),
    ({"images": ["x"]}, "images"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED_DECISIONS, ids=lambda value: json.dumps(value)[:50])
def test_decisions_that_are_refused(tape_server, fields, param) -> None:
    body = {"input": "x", "questions": [YES_NO], **fields}
    refused(post(tape_server, "/v1/decisions", body), 400, param=param)


def test_what_is_null_is_not_set(tape_server) -> None:
    unset = {"id": None, "yes": None, "no": None}
    bodies = [
        {"input": "x", "questions": [{"type": "yes_no", "question": "?", **more}, {**SCORE, "levels": levels}]}
        for more, levels in (({}, 3), (unset, 3.0))
    ]
    first, second = (ok(post(tape_server, "/v1/decisions", body))["decisions"] for body in bodies)
    assert first == second
    assert first[0]["id"] == "0"


# Ranks.


def rank(server, **fields) -> httpx.Response:
    return post(server, "/v1/rerank", {"query": "q", "documents": [tape("n"), tape("y"), tape("m")], **fields})


@pytest.fixture
def bytes_for_labels(monkeypatch) -> None:
    """The byte tokenizer has no token for a word."""
    monkeypatch.setattr(rerank, "LABELS", ("y", "n"))


@pytest.mark.usefixtures("bytes_for_labels")
def test_documents_are_ranked_by_yes_against_no(simulated_tape) -> None:
    answer = ok(rank(simulated_tape))
    assert [result["index"] for result in answer["results"]] == [1, 2, 0]
    assert [result["document"]["text"] for result in answer["results"]] == [tape("y"), tape("m"), tape("n")]
    scores = [result["relevance_score"] for result in answer["results"]]
    assert near(scores, [MOST / (MOST + REST), REST / (REST + NEXT), REST / (REST + MOST)])
    few = ok(
        rank(simulated_tape, top_n=2, return_documents=False, documents=[{"text": tape("n")}, {"text": tape("y")}])
    )
    assert [set(result) for result in few["results"]] == [{"index", "relevance_score"}] * 2


def test_a_vocabulary_without_the_labels_is_refused(tape_server) -> None:
    error = refused(rank(tape_server), 400, code="unsupported_by_model")
    assert "'yes'" in error["message"]


REFUSED_RANKS = [
    ({"query": None}, "query"),
    ({"query": ""}, "query"),
    ({"documents": None}, "documents"),
    ({"documents": []}, "documents"),
    ({"documents": [""]}, "documents"),
    ({"documents": [5]}, "documents"),
    ({"documents": ["a"] * 4097}, "documents"),
    ({"top_n": 0}, "top_n"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED_RANKS, ids=lambda value: json.dumps(value)[:50])
def test_ranks_that_are_refused(tape_server, fields, param) -> None:
    refused(rank(tape_server, **fields), 400, param=param)


BODIES = [
    ("/v1/score", {"query": "a", "items": ["b", "c"], "label_token_ids": [A]}),
    ("/v1/decisions", {"input": "x", "questions": [YES_NO, SCORE]}),
    ("/v1/rerank", {"query": "q", "documents": ["a", "b"]}),
]


@pytest.mark.usefixtures("bytes_for_labels")
@pytest.mark.parametrize(("path", "body"), BODIES, ids=lambda value: str(value)[:30])
def test_a_client_that_leaves_ends_its_requests(path, body) -> None:
    with simulated(simulator=Simulator("tape")) as server:
        server.simulator.paused = True
        with pytest.raises(httpx.ReadTimeout):
            server.client.post(path, json=body, timeout=0.2)
        server.wait_idle(1.0)
        assert server.engine.num_open == 0
