"""Steps become text: nothing is lost, nothing comes twice, nothing comes that is taken back."""

import codecs
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corymb.scheduler.messages import Finish, Logprob, Output, Step, Text, TextOptions
from corymb.serve.detokenizer import Detokenizer
from corymb.serve.tokenizer import Tokenizer, byte_tokenizer, load_tokenizer

BYTES = byte_tokenizer()
STOP, LENGTH = Finish("stop", matched=257), Finish("length")
PLAIN = TextOptions()


def run(
    outputs: Sequence[Sequence[int]],
    options: TextOptions = PLAIN,
    finish: Finish | None = LENGTH,
    tokenizer=BYTES,
) -> list[Text]:
    """The texts of one request whose tokens come in `outputs`, the last of them with `finish`."""
    detokenizer, texts = Detokenizer(tokenizer), []
    for index, token_ids in enumerate(outputs):
        last = finish if index == len(outputs) - 1 else None
        output = Output("r", list(token_ids), 3, 1, finish=last, text=options if index == 0 else None)
        texts += detokenizer.texts(Step([output])).texts
    if finish is not None:
        assert detokenizer.num_requests == 0
    return texts


def joined(texts: Sequence[Text]) -> str:
    return "".join(text.text for text in texts)


def one_by_one(text: str, tokenizer: Tokenizer = BYTES) -> list[list[int]]:
    return [[token_id] for token_id in tokenizer.encode(text, add_special_tokens=False)]


@dataclass(frozen=True)
class Answer:
    text: str
    num_tokens: int
    stop: str | None


def plainly(tokenizer: Tokenizer, token_ids: Sequence[int], options: TextOptions) -> Answer:
    """The same by definition: decode all, look at every end of the text in turn."""
    data, before = b"", ""
    for index, token_id in enumerate(token_ids):
        if not (options.skip_special_tokens and tokenizer.is_special(token_id)):
            data += tokenizer.token_bytes(token_id)
        text = codecs.utf_8_decode(data, "replace", False)[0]
        for end in range(len(before) + 1, len(text) + 1):
            found = [stop for stop in options.stop if text[:end].endswith(stop)]
            if found and index >= options.min_new_tokens:
                stop = max(found, key=len)
                return Answer(text[: end if options.include_stop else end - len(stop)], index + 1, stop)
        before = text
    return Answer(before, len(token_ids), None)


def check_split(tokenizer: Tokenizer, data: st.DataObject, ids: st.SearchStrategy[int], stops: Sequence[str]) -> None:
    token_ids = data.draw(st.lists(ids, min_size=1, max_size=40))
    options = TextOptions(
        stop=tuple(data.draw(st.lists(st.sampled_from(stops), max_size=3))),
        min_new_tokens=data.draw(st.integers(0, 6)),
        include_stop=data.draw(st.booleans()),
        skip_special_tokens=data.draw(st.booleans()),
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(token_ids)), max_size=8)))
    parts = [token_ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(token_ids)], strict=True)]
    expected = plainly(tokenizer, token_ids, options)
    texts = run(parts, options, tokenizer=tokenizer)
    finish = texts[-1].finish
    assert finish is not None
    assert joined(texts) == expected.text
    assert texts[-1].num_output_tokens == sum(len(text.token_ids) for text in texts) == expected.num_tokens
    assert finish == (LENGTH if expected.stop is None else Finish("stop", matched=expected.stop))


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.data())
def test_any_split_of_bytes_gives_the_same_text(data: st.DataObject) -> None:
    few = st.sampled_from([97, 98, 99, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, 0xED, 0xA0, 257, 260])
    check_split(BYTES, data, few, ["ab", "abc", "b", "cab", "é", "aé", "€", "<think>", "\ufffd"])


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.data())
def test_any_split_of_any_bytes_gives_the_same_text(data: st.DataObject) -> None:
    check_split(BYTES, data, st.integers(0, 263), ["a", "ab", "\ufffd", "\ufffd\ufffd"])


@pytest.mark.weights
@pytest.mark.parametrize("fixture", ["smollm2", "gemma3"])
def test_any_split_of_real_tokens_gives_the_same_text(request, fixture: str) -> None:
    tokenizer = load_tokenizer(request.getfixturevalue(fixture))
    common = tokenizer.encode("The answer: 42! 日本 👍🏽 naïve\n\n  x", add_special_tokens=False)

    @settings(deadline=None, derandomize=True, max_examples=150)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        ids = st.sampled_from(common) | st.integers(0, tokenizer.vocab_size - 1)
        check_split(tokenizer, data, ids, ["e", " an", "swer:", "\n", "42! ", "日本", "👍", "é"])

    check()


@pytest.mark.weights
@pytest.mark.parametrize("fixture", ["smollm2", "gemma3"])
def test_joined_texts_equal_the_decoded_whole(request, fixture: str) -> None:
    tokenizer = load_tokenizer(request.getfixturevalue(fixture))
    token_ids = np.random.default_rng(5).integers(0, tokenizer.vocab_size, 4000).tolist()
    texts = run([[token_id] for token_id in token_ids], tokenizer=tokenizer)
    whole = tokenizer.decode(token_ids)
    assert joined(texts) in (whole, whole.removesuffix("\ufffd"))


def test_characters_of_many_bytes_come_whole() -> None:
    text = "A😀👍🏽é한"
    texts = run([*one_by_one(text), [257]], finish=STOP)
    assert joined(texts) == text
    assert "\ufffd" not in joined(texts)
    assert [part.text for part in texts[:6]] == ["A", "", "", "", "😀", ""]
    assert texts[-1].num_output_tokens == 19


def test_character_that_never_ends_is_left_out() -> None:
    assert joined(run(one_by_one("ab😀")[:4])) == "ab"


def test_bytes_that_are_no_text_become_replacement_characters() -> None:
    assert joined(run([[97], [0xFF], [0xE2], [98], [0x82], [99]])) == "a\ufffd\ufffdb\ufffdc"


def test_no_part_of_a_stop_string_is_shown() -> None:
    texts = run(one_by_one("ABCDEFGHIJKL"), TextOptions(stop=("DEFGHIJ",)))
    assert [text.text for text in texts if text.text] == ["A", "B", "C"]
    assert texts[-1].finish == Finish("stop", matched="DEFGHIJ")
    assert texts[-1].num_output_tokens == 10


def test_included_stop_string_ends_the_text() -> None:
    texts = run([list(b"ABCDEFGHIJKL")], TextOptions(stop=("DEFGHIJ",), include_stop=True))
    assert joined(texts) == "ABCDEFGHIJ"


def test_first_stop_string_to_end_wins() -> None:
    texts = run([list(b"ABCDEFGHIJKL")], TextOptions(stop=("DEFGHIJ", "B")))
    assert (joined(texts), texts[-1].finish) == ("A", Finish("stop", matched="B"))


def test_text_that_only_began_like_a_stop_string_comes_later() -> None:
    texts = run(one_by_one("abcabd"), TextOptions(stop=("abd", "bcx")))
    assert [text.text for text in texts] == ["", "", "a", "bc", "", ""]
    assert texts[-1].finish == Finish("stop", matched="abd")


def test_held_back_text_comes_when_the_request_ends_otherwise() -> None:
    options = TextOptions(stop=("STOP",))
    assert [text.text for text in run(one_by_one("abST"), options)] == ["a", "b", "", "ST"]
    assert joined(run([*one_by_one("abST"), [257]], options, STOP)) == "abST"


def test_stop_string_within_the_least_number_of_tokens_does_not_end() -> None:
    options = TextOptions(stop=("STOP",), min_new_tokens=8)
    texts = run([*one_by_one("abSTOPcd"), [257]], options, STOP)
    assert joined(texts) == "abSTOPcd"
    assert texts[-1].finish == STOP
    texts = run(one_by_one("abSTOPcdeSTOP"), options)
    assert (joined(texts), texts[-1].num_output_tokens) == ("abSTOPcde", 13)


def test_stop_string_that_ends_after_the_least_number_of_tokens_counts() -> None:
    texts = run(one_by_one("abSTOPcd"), TextOptions(stop=("STOP",), min_new_tokens=5))
    assert (joined(texts), texts[-1].num_output_tokens) == ("ab", 6)


def test_stop_token_is_trimmed_unless_it_is_asked_for() -> None:
    finish = Finish("stop", matched=100)
    ids = [[97], [98], [257], [99], [100]]
    assert joined(run(ids, finish=finish)) == "abc"
    assert joined(run(ids, TextOptions(include_stop=True), finish)) == "abcd"
    texts = run(ids, finish=finish)
    assert (texts[-1].num_output_tokens, texts[-1].token_ids) == (5, [100])


def test_special_tokens_are_shown_when_asked() -> None:
    ids = [[97], [259], [260], [98]]
    assert joined(run(ids)) == "ab"
    assert joined(run(ids, TextOptions(skip_special_tokens=False))) == "a<|im_end|><think>b"


def test_end_token_is_trimmed_even_where_special_tokens_are_shown() -> None:
    ids = [[97], [257]]
    assert joined(run(ids, TextOptions(skip_special_tokens=False), STOP)) == "a"
    assert joined(run(ids, TextOptions(skip_special_tokens=False, include_stop=True), STOP)) == "a<eos>"
    assert joined(run(ids, TextOptions(include_stop=True), STOP)) == "a"


def test_stop_string_goes_before_the_length_limit_of_the_same_step() -> None:
    texts = run([list(b"abSxy")], TextOptions(stop=("S",)))
    assert (joined(texts), texts[-1].finish) == ("ab", Finish("stop", matched="S"))
    assert (texts[-1].token_ids, texts[-1].num_output_tokens) == (list(b"abS"), 3)


def test_outputs_after_a_stop_string_are_dropped_until_the_last_word() -> None:
    detokenizer = Detokenizer(BYTES)

    def send(token_ids: list[int], finish: Finish | None = None, options: TextOptions | None = None) -> list[Text]:
        return detokenizer.texts(Step([Output("r", token_ids, 1, 0, finish=finish, text=options)])).texts

    assert send([97, 83], options=TextOptions(stop=("S",)))[0].text == "a"
    assert send([98]) == []
    assert detokenizer.num_requests == 1
    assert send([], Finish("stop", matched="S")) == []
    assert detokenizer.num_requests == 0
    assert send([99], LENGTH, TextOptions())[0].text == "c"


def test_request_refused_before_its_first_token_is_answered() -> None:
    finish = Finish("error", message="The prompt is too long.", status=400)
    [text] = Detokenizer(BYTES).texts(Step([Output("r", [], 9, 0, finish=finish)])).texts
    assert (text.rid, text.text, text.finish, text.num_prompt_tokens) == ("r", "", finish, 9)


def test_abort_brings_what_was_held_back() -> None:
    finish = Finish("abort", message="The client went away.")
    texts = run([list(b"abST"), []], TextOptions(stop=("STOP",)), finish)
    assert (joined(texts), texts[-1].finish, texts[-1].num_output_tokens) == ("abST", finish, 4)


def test_too_many_requests_are_refused_and_not_remembered() -> None:
    detokenizer = Detokenizer(BYTES, max_requests=2)
    step = Step([Output(f"r{index}", [97], 1, 0, text=TextOptions()) for index in range(3)])
    texts = detokenizer.texts(step).texts
    assert [text.text for text in texts] == ["a", "a", ""]
    assert texts[2].finish is not None
    assert (texts[2].finish.reason, texts[2].finish.status) == ("error", 503)
    assert detokenizer.num_requests == 2


def test_requests_do_not_mix() -> None:
    detokenizer = Detokenizer(BYTES)
    parts = {"a": "é€a", "b": "😀b", "c": "ccc"}
    got = dict.fromkeys(parts, "")
    for index in range(6):
        outputs = []
        for rid, text in parts.items():
            byte = text.encode()[index : index + 1]
            if byte:
                outputs.append(Output(rid, list(byte), 1, 0, text=TextOptions() if index == 0 else None))
        for text in detokenizer.texts(Step(outputs)).texts:
            got[text.rid] += text.text
    assert got == parts


def test_logprobs_are_spelled_and_end_with_the_stop_string() -> None:
    entries = [Logprob(token_id, -0.5, ((token_id, -0.5), (0xE9, -1.5)), ((257, -9.0),)) for token_id in b"abSx"]
    output = Output("r", list(b"abSx"), 2, 0, text=TextOptions(stop=("S",)), logprobs=entries)
    output_with_prompt = Output(
        "p", [97], 2, 0, text=TextOptions(), prompt_logprobs=[Logprob(104, None), Logprob(105, -1.0)], queue_s=0.25
    )
    text, other = Detokenizer(BYTES).texts(Step([output, output_with_prompt])).texts
    assert text.logprobs is not None
    assert [entry.token for entry in text.logprobs] == ["a", "b", "S"]
    first = text.logprobs[0]
    assert (first.token_id, first.token_bytes, first.logprob) == (97, [97], -0.5)
    assert [(entry.token, entry.token_bytes, entry.logprob) for entry in first.top] == [
        ("a", [97], -0.5),
        ("\ufffd", [0xE9], -1.5),
    ]
    assert [(entry.token, entry.logprob) for entry in first.chosen] == [("<eos>", -9.0)]
    assert other.prompt_logprobs is not None
    assert [(entry.token, entry.logprob) for entry in other.prompt_logprobs] == [("h", None), ("i", -1.0)]
    assert (other.queue_s, other.num_prompt_tokens, other.num_cached_tokens) == (0.25, 2, 0)


def steps(num_requests: int, num_steps: int, options: TextOptions) -> list[Step]:
    rng = np.random.default_rng(0)
    return [
        Step(
            [
                Output(f"r{row}", [int(rng.integers(97, 123))], 1, 0, text=options if index == 0 else None)
                for row in range(num_requests)
            ]
        )
        for index in range(num_steps)
    ]


@pytest.mark.parametrize("stops", [(), ("zzzzzz", "qqq")])
def test_step_of_64_tokens_takes_little_time(stops: tuple[str, ...]) -> None:
    detokenizer, taken_s = Detokenizer(BYTES), []
    for step in steps(64, 100, TextOptions(stop=stops)):
        begun_s = time.perf_counter()
        detokenizer.texts(step)
        taken_s.append(time.perf_counter() - begun_s)
    assert min(taken_s) < 0.0004


def test_time_grows_with_the_length_and_no_faster() -> None:
    def seconds(length: int) -> float:
        outputs = [[97]] * length
        begun_s = time.perf_counter()
        run(outputs, TextOptions(stop=("a" * 50 + "b",)))
        return time.perf_counter() - begun_s

    short = min(seconds(2000) for _ in range(3))
    assert min(seconds(20_000) for _ in range(3)) < 30 * short


def test_finished_requests_leave_nothing_behind(tmp_path: Path) -> None:
    detokenizer = Detokenizer(BYTES)
    for index in range(1000):
        output = Output(f"r{index}", [97, 0xE2], 1, 0, finish=LENGTH, text=TextOptions(stop=("ab",)))
        detokenizer.texts(Step([output]))
    assert detokenizer.num_requests == 0
