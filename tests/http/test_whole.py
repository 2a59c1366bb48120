"""Whole servers with the test models, and the flags that other servers' bugs needed to show."""

import json
import random
import re
import threading
import time

import httpx
import openai
import pytest

from tests.http.client import at_once, chat, complete, events, finish_of, post, refused, tape, text_of

pytestmark = pytest.mark.server


def text(response) -> str:
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


def metric(server, name: str) -> float:
    """The sum of a metric's samples."""
    found = re.findall(rf"^corymb_{name}(?:{{.*}})? (\S+)$", server.client.get("/metrics").text, re.MULTILINE)
    assert found, name
    return sum(map(float, found))


def until(condition, timeout_s: float) -> None:
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def is_idle(server) -> bool:
    return not any(metric(server, name) for name in ("running_requests", "queued_requests", "pool_used_tokens"))


# The cache never changes a text.

AB = "ab" * 50
EXPECTED = "njpmkwbdfzjowwktjtbfhozhfgmivkiu"
VARIANTS = {
    "no cache": (["--disable-radix-cache", "--chunked-prefill-size", "7"], 0),
    "chunks of 1": (["--chunked-prefill-size", "1"], 99),
    "chunks of 3, mixed": (["--chunked-prefill-size", "3", "--enable-mixed-chunk"], 99),
    "chunks of 99": (["--chunked-prefill-size", "99"], 99),
    "chunks of 100, no overlap": (["--chunked-prefill-size", "100", "--disable-overlap-schedule"], 99),
    "chunks of 101": (["--chunked-prefill-size", "101"], 99),
    "pages of 16": (["--page-size", "16"], 96),
}


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request, serving):
    flags, num_cached = VARIANTS[request.param]
    with serving("corymb/hash", *flags) as server:
        yield server, num_cached


def ask(server, prompt: str = AB) -> dict:
    response = complete(server, prompt, max_tokens=32)
    assert response.status_code == 200, response.text
    return response.json()


def cached(answer: dict) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def check_cold_and_warm(server, num_cached: int) -> None:
    assert server.client.post("/flush_cache").status_code == 200
    for expected in (0, num_cached):
        answer = ask(server)
        assert answer["choices"][0]["text"] == EXPECTED
        assert cached(answer) == expected
    assert server.client.post("/flush_cache").status_code == 200
    assert (ask(server)["choices"][0]["text"], cached(ask(server)) > 0) == (EXPECTED, num_cached > 0)


def test_the_cache_changes_no_text(whole_hash) -> None:
    check_cold_and_warm(whole_hash, 99)


def test_no_way_of_chunking_changes_a_text(variant) -> None:
    server, num_cached = variant
    check_cold_and_warm(server, num_cached)
    changed = [AB[:at] + "c" + AB[at + 1 :] for at in (1, 15, 16, 17, 99)]
    alone = [ask(server, prompt)["choices"][0]["text"] for prompt in changed]
    assert server.client.post("/flush_cache").status_code == 200
    again = at_once([lambda p=p: ask(server, p)["choices"][0]["text"] for p in changed * 4 + [AB] * 12])
    assert again == alone * 4 + [EXPECTED] * 12
    assert len({*alone, EXPECTED}) == 6


def test_no_way_of_chunking_changes_the_scores_of_a_prompt(variant, whole_hash) -> None:
    server, _ = variant
    body = {"echo": True, "max_tokens": 0, "logprobs": 1}
    for prompt in ("abcdefgh", "abcdefgh", AB):
        mine, other = complete(server, prompt, **body).json(), complete(whole_hash, prompt, **body).json()
        assert mine["choices"] == other["choices"]
        values = mine["choices"][0]["logprobs"]["token_logprobs"]
        assert values[0] is None
        assert len(values) == len(prompt)
        assert all(abs(value + 10.0119) < 1e-3 or abs(value + 0.0119) < 1e-3 for value in values[1:])


def test_requests_in_one_batch_do_not_meet(whole_hash) -> None:
    prompts = [AB] + [f"{random.Random(i).random()}"[: 3 + i] for i in range(31)]
    alone = [ask(whole_hash, prompt)["choices"][0]["text"] for prompt in prompts]
    assert at_once([lambda p=p: ask(whole_hash, p)["choices"][0]["text"] for p in prompts]) == alone
    assert alone[0] == EXPECTED


# A pool that is too small.


@pytest.fixture(scope="module")
def tiny(serving):
    # Retractions happen by themselves here, but not in every run: some are forced.
    with serving("corymb/hash", "--max-total-tokens", "256", "--test-retract-interval", "20") as server:
        yield server


LETTERS = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["yes" * 20, "no" * 30]}}}
LONG = {  # ways in which half of the requests differ; all are 64 tokens long, but for the last
    "penalties": {"frequency_penalty": 0.5},
    "a grammar": {"regex": "[a-m]{64}"},
    "a seed": {"seed": 5, "temperature": 1, "ignore_eos": True},
    "a bias and a stop": {"logit_bias": {"120": 11, "121": 11}, "stop": ["never said"], "min_tokens": 64},
    "a schema": {"response_format": LETTERS},
}


@pytest.mark.parametrize("fields", LONG.values(), ids=LONG)
def test_a_pool_that_is_too_small_changes_no_text(tiny, whole_hash, fields) -> None:
    prompts = [f"{i:02}prompt" for i in range(16)]

    def one(server, i: int) -> tuple[str, str, int, int]:
        options = {"stream": True, "stream_options": {"include_usage": True}, **(fields if i % 2 else {})}
        chunks = events(complete(server, prompts[i], max_tokens=64, logprobs=1, **options))
        scores = [c["logprobs"]["tokens"] for chunk in chunks for c in chunk["choices"] if c["logprobs"]]
        usage = chunks[-1]["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"] == 8
        return text_of(chunks), finish_of(chunks)["finish_reason"], sum(map(len, scores)), usage["completion_tokens"]

    before = metric(tiny, "retractions_total")
    small = at_once([lambda i=i: one(tiny, i) for i in range(16)])
    assert small == at_once([lambda i=i: one(whole_hash, i) for i in range(16)])
    assert all(scores == count for _, _, scores, count in small)
    ended = {(reason, count) for _, reason, _, count in small}
    assert ended <= ({("length", 64), ("stop", 63)} if fields is LONG["a schema"] else {("length", 64)})
    until(lambda: metric(tiny, "retractions_total") > before, 3)
    until(lambda: is_idle(tiny), 3)


def test_a_prompt_larger_than_the_pool_is_refused(tiny) -> None:
    refused(complete(tiny, "a" * 300, max_tokens=1), 400)
    assert text(complete(tiny, "ab", max_tokens=4)) == "svdt"


# Penalties and seeds among others.

PENALTIES = [({"presence_penalty": 2}, "abaa"), ({"frequency_penalty": 2}, "abab")]
PENALTIES += [({"repetition_penalty": 1.2}, "baaa"), ({}, "aaaa")]


def test_penalties_do_not_leak_into_neighbours(whole_tape) -> None:
    def run(position: int) -> str:
        time.sleep(position * 0.002)
        return text(complete(whole_tape, tape("aaaa"), max_tokens=4, **PENALTIES[position % 4][0]))

    def leave() -> None:
        body = {"prompt": tape("aaaa"), "presence_penalty": 2, "ignore_eos": True, "max_tokens": 4000, "stream": True}
        with whole_tape.client.stream("POST", "/v1/completions", json=body) as response:
            next(response.iter_lines())

    threads = [threading.Thread(target=leave) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert at_once([lambda i=i: run(i) for i in range(32)]) == [PENALTIES[i % 4][1] for i in range(32)]
    for thread in threads:
        thread.join()


def test_seeds_hold_in_any_company(whole_uniform) -> None:
    def seeded(seed: int) -> list[str]:
        response = complete(whole_uniform, "x", n=4, seed=seed, temperature=1, max_tokens=16)
        return [choice["text"] for choice in response.json()["choices"]]

    alone = seeded(7)
    crowd = [
        lambda i=i: complete(whole_uniform, f"y{i}", temperature=1, max_tokens=40, ignore_eos=True) for i in range(16)
    ]
    assert at_once([*crowd, lambda: seeded(7)])[-1] == alone
    assert seeded(8) != alone


# Accounts.


@pytest.fixture(scope="module")
def chunked_tape(serving):
    with serving("corymb/tape", "--chunked-prefill-size", "8") as server:
        yield server


def test_a_prompt_in_chunks_is_counted_whole_in_every_chunk_of_the_answer(chunked_tape) -> None:
    prompt = tape("a" * 33)
    assert len(prompt) == 40
    options = {"include_usage": True, "continuous_usage_stats": True}
    for _ in range(2):
        chunks = events(complete(chunked_tape, prompt, max_tokens=1, stream=True, stream_options=options))
        assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {40}
        assert chunks[-1]["usage"]["completion_tokens"] == 1
    assert chunks[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


# Clients that leave, and queues.

ENDLESS = {"ignore_eos": True, "max_tokens": 100_000}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
def test_what_a_client_leaves_is_free_within_a_second(whole_tape, path) -> None:
    bodies = {
        "/v1/completions": {"prompt": ["a", "b"], **ENDLESS},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], **ENDLESS},
        "/generate": {"text": "a", "sampling_params": {"ignore_eos": True, "max_new_tokens": 100_000}},
    }
    with whole_tape.client.stream("POST", path, json={**bodies[path], "stream": True}) as response:
        lines = response.iter_lines()
        for _ in range(3):
            next(lines)
        assert response.status_code == 200
    until(lambda: is_idle(whole_tape), 1.0)


def test_the_same_without_a_stream(slow_tape) -> None:
    with pytest.raises(httpx.ReadTimeout):
        post(slow_tape, "/v1/completions", {"prompt": "a", "ignore_eos": True, "max_tokens": 100_000}, timeout=0.5)
    until(lambda: is_idle(slow_tape), 1.0)


def test_many_clients_that_come_and_go_leave_nothing(whole_tape) -> None:
    def visit(seed: int) -> None:
        seconds = random.Random(seed).uniform(0, 0.3)
        body = {"prompt": "a", "stream": True, **ENDLESS}
        with httpx.stream("POST", f"{whole_tape.url}/v1/completions", json=body, timeout=30) as response:
            begun_s = time.monotonic()
            next((line for line in response.iter_lines() if time.monotonic() - begun_s > seconds), None)

    at_once([lambda i=i: visit(i) for i in range(50)])
    until(lambda: is_idle(whole_tape), 2.0)


@pytest.fixture(scope="module")
def slow_tape(serving):
    """One request at a time, 20 ms a token; two may wait, for a second."""
    flags = ("--max-running-requests", "1", "--max-queued-requests", "2", "--queue-timeout", "1")
    with serving("corymb/tape", *flags, "--test-failpoint", "scheduler.slow_step_s=0.02") as server:
        yield server


def test_a_full_queue_answers_at_once(slow_tape) -> None:
    def one(stream: bool):
        begun_s = time.monotonic()
        response = complete(slow_tape, "a", ignore_eos=True, max_tokens=10, stream=stream)
        return response, time.monotonic() - begun_s

    answers = at_once([lambda i=i: one(i % 2 == 0) for i in range(5)])
    assert sorted(response.status_code for response, _ in answers) == [200, 200, 200, 503, 503]
    for response, took_s in answers:
        if response.status_code == 503:
            refused(response, 503, code="queue_full")
            assert int(response.headers["retry-after"]) >= 1
            assert took_s < 0.2


def test_who_waits_too_long_is_told(slow_tape) -> None:
    def long():
        return complete(slow_tape, "a", ignore_eos=True, max_tokens=150, stream=True)

    def waiting():
        time.sleep(0.2)
        begun_s = time.monotonic()
        return complete(slow_tape, "b", max_tokens=1), time.monotonic() - begun_s

    first, (second, took_s) = at_once([long, waiting])
    refused(second, 503, code="queue_timeout")
    assert 0.9 < took_s < 2
    assert finish_of(events(first))["finish_reason"] == "length"


# OpenAI's own client.


@pytest.fixture
def client(whole_tape):
    with openai.OpenAI(base_url=f"{whole_tape.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_the_official_client_reads_answers(client) -> None:
    message = {"role": "user", "content": tape("A😀b")}
    whole = client.chat.completions.create(
        model="tape", messages=[message], temperature=0, logprobs=True, top_logprobs=2
    )
    assert whole.choices[0].message.content == "A😀b"
    assert whole.choices[0].logprobs.content[0].top_logprobs[1].token == "B"
    assert whole.usage.prompt_tokens_details.cached_tokens >= 0
    completion = client.completions.create(
        model="tape", prompt=['TAPE "a"', 'TAPE "b"'], temperature=0, n=2, logprobs=1
    )
    assert [choice.text for choice in completion.choices] == ["a", "a", "b", "b"]
    assert completion.choices[0].logprobs.tokens[0] == "a"
    assert [model.id for model in client.models.list()] == ["tape", "corymb/tape"]
    assert client.models.retrieve("tape").id == "tape"


def test_the_official_client_reads_streams(client) -> None:
    message = {"role": "user", "content": tape("A😀b")}
    stream = client.chat.completions.create(
        model="tape", messages=[message], temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "A😀b"
    assert chunks[-1].usage.completion_tokens == 7
    with client.chat.completions.stream(model="tape", messages=[message], temperature=0) as rich:
        assert rich.get_final_completion().choices[0].message.content == "A😀b"


def test_the_official_client_reads_errors(client) -> None:
    message = {"role": "user", "content": "a"}
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nope", messages=[message])
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="tape", messages=[message], max_tokens=-1)
    assert (bad.value.param, bad.value.type) == ("max_tokens", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="tape", prompt="a" * 140_000)
    assert long.value.code == "context_length_exceeded"
    tool = {"type": "function", "function": {"name": "no name"}}
    with pytest.raises(openai.BadRequestError) as tools:
        client.chat.completions.create(model="tape", messages=[message], tools=[tool])
    assert tools.value.param == "tools"


def test_keys_of_a_whole_server(serving) -> None:
    with serving("corymb/tape", "--api-key", "user-key", "--admin-api-key", "admin-key", key="user-key") as server:
        assert chat(server, tape("a")).json()["choices"][0]["message"]["content"] == "a"
        assert httpx.get(f"{server.url}/health").status_code == 200
        assert httpx.get(f"{server.url}/v1/models").status_code == 401
        refused(server.client.post("/flush_cache"), 403)
        admin = {"x-api-key": "admin-key"}
        assert httpx.post(f"{server.url}/flush_cache", headers=admin).json()["success"] is True
        info = json.dumps(server.client.get("/server_info").json())
        assert "user-key" not in info
        assert "admin-key" not in info
        assert "user-key" not in server.log
