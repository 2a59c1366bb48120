"""Token counts of one HTTP request."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from corymb.scheduler.messages import Speculated, Text
from corymb.serve.events import Counts


class Usage:
    """Counts every prompt once, however many choices it has, and the output of all choices."""

    def __init__(self, prompt_lengths: Sequence[int], num_choices: Sequence[int]) -> None:
        """`num_choices[i]`: how many choices prompt `i` has."""
        self.num_prompt = sum(prompt_lengths)
        self._prompt_lengths = prompt_lengths
        self.num_output = 0
        *self._firsts, total = accumulate(num_choices, initial=0)  # the choices that count a prompt
        self._cached = [0] * total
        self._output = [0] * total
        self._reasoning = [0] * total
        self._speculated: list[Speculated | None] = [None] * total

    def add(self, index: int, text: Text, num_reasoning: int) -> None:
        """Takes a piece of choice `index`; counts are those of the choice so far."""
        self.num_output += text.num_output_tokens - self._output[index]
        self._output[index] = text.num_output_tokens
        self._cached[index] = text.num_cached_tokens
        self._reasoning[index] = num_reasoning
        self._speculated[index] = text.speculated

    def counts(self, index: int) -> Counts:
        """Those of choice `index` so far."""
        prompt = self._prompt_lengths[bisect_right(self._firsts, index) - 1]
        return Counts(prompt, self._cached[index], self._output[index], self._reasoning[index], self._speculated[index])

    @property
    def num_cached(self) -> int:
        """Prompt tokens that were in the cache."""
        return sum([self._cached[index] for index in self._firsts])

    @property
    def num_reasoning(self) -> int:
        """Output tokens of reasoning, the marks around it included."""
        return sum(self._reasoning)

    def json(self) -> bytes:
        """The usage object of chats and completions; no cached tokens is 0, not null."""
        prompt, output = self.num_prompt, self.num_output
        return (
            b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,'
            b'"prompt_tokens_details":{"cached_tokens":%d},"completion_tokens_details":{"reasoning_tokens":%d}}'
            % (prompt, output, prompt + output, self.num_cached, self.num_reasoning)
        )
