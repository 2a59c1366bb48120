"""What a generation says, one event at a time: the only thing that dialects spell.

Structs, because there is one for every token, and frozen dataclasses are slow to make.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from corymb.scheduler.messages import Finish, Speculated, TextLogprob


class Content(Struct, frozen=True):
    """A piece of the answer. It may have no text: its tokens may all be held back, or be structure and not text."""

    text: str
    logprobs: Sequence[TextLogprob] = ()  # of all tokens since the last event that carried any, reasoning included
    token_ids: Sequence[int] = ()  # the tokens behind it
    prompt_logprobs: Sequence[TextLogprob] = ()  # with the first piece only
    embedding: bytes | None = None  # where one was asked for


class Reasoning(Struct, frozen=True):
    """A piece of what the model thinks before it answers."""

    text: str


class ToolOpened(Struct, frozen=True):
    """A call begins. Calls count from 0 within a choice; `id` is ours."""

    index: int
    id: str
    name: str


class ToolArguments(Struct, frozen=True):
    """A piece of the JSON text of a call's arguments; joined, the pieces are the whole."""

    index: int
    fragment: str


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens of one choice. Cached ones are among those of the prompt, those of reasoning among the output."""

    prompt: int
    cached: int = 0
    output: int = 0
    reasoning: int = 0
    speculated: Speculated | None = None


class Finished(Struct, frozen=True):
    """The last event of a choice."""

    finish: Finish
    usage: Counts


Event = Content | Reasoning | ToolOpened | ToolArguments | Finished
