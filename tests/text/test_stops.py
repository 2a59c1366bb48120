"""Stop strings are found at the first place where one ends, however the text is cut."""

import random
import tracemalloc

import pytest

from corymb.serve.stops import StopFinder


def plainly(stops: list[str], text: str) -> tuple[int, str] | None:
    """The end of the first stop string, and the longest that ends there."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return end, max(found, key=len)
    return None


def in_pieces(finder: StopFinder, rng: random.Random, text: str) -> tuple[int, str] | None:
    state, at = StopFinder.START, 0
    while at < len(text):
        piece = text[at : at + rng.randint(1, 4)]
        state, found = finder.read(state, piece)
        if found is not None:
            return at + found.num_read, found.stop
        at += len(piece)
    return None


@pytest.mark.parametrize("seed", range(500))
def test_first_end_is_found_in_any_pieces(seed: int) -> None:
    rng = random.Random(seed)
    stops = ["".join(rng.choices("ab", k=rng.randint(1, 6))) for _ in range(rng.randint(1, 4))]
    text = "".join(rng.choices("abc", [4, 4, 1], k=30))
    assert in_pieces(StopFinder(stops), rng, text) == plainly(stops, text), (stops, text)


@pytest.mark.parametrize("seed", range(200))
def test_held_text_is_the_longest_beginning_of_a_stop_string(seed: int) -> None:
    rng = random.Random(seed)
    stops = ["".join(rng.choices("ab", k=rng.randint(2, 6))) for _ in range(3)]
    finder, state, text = StopFinder(stops), StopFinder.START, ""
    while not plainly(stops, text) and len(text) < 30:
        beginnings = [stop[:size] for stop in stops for size in range(len(stop)) if text.endswith(stop[:size])]
        assert finder.held(state) == max(beginnings, key=len)
        text += rng.choice("abc")
        state, _ = finder.read(state, text[-1])


def test_stop_string_that_does_not_count_is_not_held() -> None:
    finder = StopFinder(["STOP", "OPEN"])
    state = finder.read_past(StopFinder.START, "aSTOP")
    assert finder.held(state) == "OP"
    assert finder.held(finder.read_past(state, "EN")) == ""
    assert finder.held(StopFinder(["STOP"]).read_past(StopFinder.START, "STOP")) == ""


def test_memory_grows_no_faster_than_the_stop_strings() -> None:
    def weight(num_chars: int) -> int:
        tracemalloc.start()
        try:
            finder = StopFinder(["\N{GRINNING FACE}" * num_chars])
            assert finder.held(StopFinder.START) == ""
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    # A copy of its text in each node would make four times the characters weigh eleven times as much.
    assert weight(4000) < 6 * weight(1000)
