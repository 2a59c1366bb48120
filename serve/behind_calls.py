"""What stands beside calls: content, or still reasoning where a call seemed to break it off."""

from functools import lru_cache

from corymb.serve.machine import Machine
from corymb.serve.reasoning_syntaxes import broken_syntax
from corymb.serve.spoken import Spoken

_broken_syntax = lru_cache(maxsize=16)(broken_syntax)


class BehindCalls:
    """Hears the machine that looks for calls.

    Models forget to close a thought before they call. So a call in a thought ends it, and a closing mark that comes all
    the same means nothing; but what only looks like a call does not end it.
    """

    def __init__(self, spoken: Spoken) -> None:
        self._spoken = spoken
        self._rest: Machine | None = None  # reads what stands beside calls since one seemed to break reasoning off
        self.arguments = spoken.arguments
        self.reasoning = spoken.reasoning
        self.part = spoken.part

    def break_off(self, closing: str) -> None:
        """What may be a call begins inside a thought that `closing` should have ended."""
        self._rest = Machine(_broken_syntax(closing), self._spoken, {})

    def content(self, text: str) -> None:
        """Text beside calls."""
        if self._rest is None:
            self._spoken.content(text)
        else:
            self._rest.feed(text)

    def open(self, name: str, call_id: str | None) -> None:
        """It was a call."""
        if self._rest is not None:
            self._rest.end()
            if self._rest.state_name == "thinking":
                self._rest.enter("called")
        self._spoken.open(name, call_id)

    def end(self) -> None:
        """Nothing more comes."""
        if self._rest is not None:
            self._rest.end()
