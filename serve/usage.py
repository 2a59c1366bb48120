"""Token counts of one HTTP request."""

from collections.abc import Sequence

from corymb.scheduler.messages import Text


class Usage:
    """Counts every prompt once, however many choices it has, and the output of all choices."""

    def __init__(self, prompt_lengths: Sequence[int], n: int) -> None:
        self._n = n
        self._prompt_tokens = sum(prompt_lengths)
        self._cached = [0] * len(prompt_lengths)
        self._generated = [0] * (len(prompt_lengths) * n)
        self._total_generated = 0

    def add(self, index: int, text: Text) -> None:
        """Takes a piece of choice `index`."""
        self._total_generated += text.num_output_tokens - self._generated[index]
        self._generated[index] = text.num_output_tokens
        if index % self._n == 0:
            self._cached[index // self._n] = text.num_cached_tokens

    def json(self) -> bytes:
        """The OpenAI usage object; no cached tokens is 0, not null."""
        generated = self._total_generated
        return (
            b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}'
            % (self._prompt_tokens, generated, self._prompt_tokens + generated, sum(self._cached))
        )
