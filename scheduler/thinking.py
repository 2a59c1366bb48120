"""How long a request may think: then the end of its thought is written for it."""

from corymb.scheduler.messages import Thinking


class ThinkingLimit:
    """Follows an output until its thought ends, or until it shows that there is none."""

    # outputs   [0, len(begin)) the beginning, if it thinks   […, max_tokens) free   […) the end, token by token

    def __init__(self, thinking: Thinking) -> None:
        self.is_over = not thinking.end
        self._thinking = thinking
        self._num_outputs = 0
        self._num_matched = 0  # so many tokens of the end are the last ones of the output

    @property
    def forced(self) -> int | None:
        """The token that must come next; None: any may."""
        begun = self._num_outputs >= max(self._thinking.max_tokens, len(self._thinking.begin))
        return self._thinking.end[self._num_matched] if begun and not self.is_over else None

    def advance(self, token_id: int) -> None:
        """The output has grown by one token."""
        if self.is_over:
            return
        begin, end = self._thinking.begin, self._thinking.end
        position = self._num_outputs
        self._num_outputs += 1
        if position < len(begin):
            self.is_over = token_id != begin[position]
            return
        last = (*end[: self._num_matched], token_id)
        while last and last != end[: len(last)]:
            last = last[1:]
        self._num_matched = len(last)
        self.is_over = self._num_matched == len(end)
