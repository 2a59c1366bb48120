"""Blocks open and close one after the other, and a stream has those of the whole answer."""

from hypothesis import given

from corymb.serve.answer import Choice
from corymb.serve.blocks import Blocks, Closed, Delta, Opened, blocks_of
from tests.http.scripts import EVERYTHING, scripts


def shown(parts) -> list[tuple[str, str, str]]:
    return [(part.kind, part.name, part.text) for part in parts]


def folded(script) -> Choice:
    choice = Choice()
    for events in script:
        choice.take(events)
    return choice


def test_blanks_between_calls_are_no_block() -> None:
    assert shown(blocks_of(folded(EVERYTHING))) == [
        ("reasoning", "", "Let me think."),
        ("content", "", "\n\nI look it up."),
        ("call", "look", '{"city": "São Paulo"}'),
        ("call", "wait", "{}"),
        ("content", "", "\nDone. 😀"),
    ]


@given(scripts())
def test_a_stream_has_the_blocks_of_the_whole_answer(script) -> None:
    blocks = Blocks()
    texts: list[str] = []
    open_number = None
    for events in script:
        for change in blocks.read(events):
            match change:
                case Opened(number, _):
                    assert (open_number, number) == (None, len(texts))
                    open_number = number
                    texts.append("")
                case Delta(number, _, text):
                    assert number == open_number
                    texts[number] += text
                case Closed(number, part):
                    assert number == open_number
                    assert part.text == texts[number]
                    open_number = None
    assert open_number is None
    assert texts == [part.text for part in blocks.closed]
    assert shown(blocks.closed) == shown(blocks_of(folded(script)))


@given(scripts())
def test_nothing_that_can_be_seen_is_lost(script) -> None:
    choice = folded(script)
    seen = "".join(part.text for part in blocks_of(choice) if part.kind == "content")
    assert "".join(seen.split()) == "".join(choice.text.split())
    if not choice.calls:
        assert seen == choice.text
