"""Turns the tokens of each step into text: what the detokenizer process does with a `Step`."""

import codecs
from collections.abc import Sequence
from functools import lru_cache

from corymb.scheduler.messages import Finish, Logprob, Output, Step, Text, TextLogprob, TextOptions, Texts
from corymb.serve.spelling import Table
from corymb.serve.stops import Found, StopFinder, Thought
from corymb.serve.tokenizer import Tokenizer

MAX_REQUESTS = 1 << 16

_MAX_KEPT_STOP_CHARS = 256

_kept_finder = lru_cache(maxsize=256)(StopFinder)  # requests of one client tend to have the same stop strings


def _finder(stops: tuple[str, ...]) -> StopFinder:
    # A finder weighs about half a kilobyte a character, so those of long strings go with their requests.
    return _kept_finder(stops) if sum(map(len, stops)) <= _MAX_KEPT_STOP_CHARS else StopFinder(stops)


class Detokenizer:
    """Owns the reading state of every request that has begun and not ended.

    The texts of one request, joined, are the decoded tokens: however its tokens are spread over steps. Left out are a
    stop string or stop token that ended it, and the bytes of a last character that it did not finish.
    """

    def __init__(self, tokenizer: Tokenizer, *, max_requests: int = MAX_REQUESTS) -> None:
        self._tokenizer = tokenizer
        self._max_requests = max_requests
        self._readings: dict[str, _Reading] = {}
        self._stopped: set[str] = set()  # ended here by a stop string; the scheduler's last word is still to come
        self._names = Table(self._name, tokenizer.vocab_size)

    @property
    def num_requests(self) -> int:
        """Requests that are remembered."""
        return len(self._readings) + len(self._stopped)

    def texts(self, step: Step) -> Texts:
        """The text of each output, in order; outputs that come after a stop string give none."""
        texts = [self._text(output) for output in step.outputs]
        return Texts([text for text in texts if text is not None])

    def _text(self, output: Output) -> Text | None:
        rid = output.rid
        reading = self._readings.get(rid)
        if reading is None:
            if rid in self._stopped and output.text is None:
                if output.finish is not None:
                    self._stopped.remove(rid)
                return None
            if output.text is None or self.num_requests >= self._max_requests:
                return _unread(output)
            reading = self._readings[rid] = _Reading(self._tokenizer, output.text)
        text, num_tokens, stop = reading.read(output)
        finish = output.finish
        if stop is not None:
            if finish is None:
                self._stopped.add(rid)
            finish = Finish("stop", matched=stop)
        if finish is not None:
            del self._readings[rid]
        return Text(
            rid,
            text,
            output.token_ids if stop is None else output.token_ids[:num_tokens],
            output.num_prompt_tokens,
            output.num_cached_tokens,
            reading.num_tokens,
            finish,
            self._spelled(output.logprobs, num_tokens) if output.logprobs else None,
            self._spelled(output.prompt_logprobs, None) if output.prompt_logprobs else None,
            output.queue_s,
            output.embedding,
            output.speculated,
        )

    def _spelled(self, logprobs: list[Logprob], limit: int | None) -> list[TextLogprob]:
        names = self._names
        return [
            TextLogprob(
                entry.token_id,
                *names[entry.token_id],
                entry.logprob,
                [TextLogprob(token_id, *names[token_id], logprob) for token_id, logprob in entry.top],
                [TextLogprob(token_id, *names[token_id], logprob) for token_id, logprob in entry.chosen],
            )
            for entry in logprobs[:limit]
        ]

    def _name(self, token_id: int) -> tuple[str, list[int]]:
        return self._tokenizer.token_text(token_id), list(self._tokenizer.token_bytes(token_id))


def _unread(output: Output) -> Text | None:
    """Answers for a request that is not being read: it ended before its first token, or there are too many."""
    finish = output.finish
    if finish is None:
        if output.text is None:
            return None
        message = "The server follows more requests at once than its detokenizer holds; try again later."
        finish = Finish("error", message=message, status=503, code="overloaded")
    return Text(output.rid, "", [], output.num_prompt_tokens, output.num_cached_tokens, 0, finish)


class _Reading:
    """One request's text so far: only what later tokens can still change."""

    __slots__ = ("_finder", "_options", "_pending", "_pieces", "_state", "_thought", "num_tokens")

    def __init__(self, tokenizer: Tokenizer, options: TextOptions) -> None:
        self.num_tokens = 0
        self._options = options
        shown = frozenset(options.shown_specials)
        self._pieces = tokenizer.spelling.shown(skip_special_tokens=options.skip_special_tokens, but=shown)
        self._pending = b""  # at most three bytes: the beginning of a character
        self._finder = _finder(options.stop) if options.stop else None
        self._state = StopFinder.START
        self._thought = Thought(options.thought, options.thought_end)

    def read(self, output: Output) -> tuple[str, int, str | None]:
        """The new text, how many tokens of `output` count, and the stop string that was found."""
        token_ids, finish = output.token_ids, output.finish
        stop_id = None
        if finish is not None and finish.reason == "stop" and token_ids and token_ids[-1] == finish.matched:
            token_ids, stop_id = token_ids[:-1], token_ids[-1]
        if self._finder is None:
            self.num_tokens += len(token_ids)
            text, num_tokens, stop = self._decode(token_ids), len(token_ids), None
        else:
            text, num_tokens, stop = self._search(self._finder, token_ids)
        if finish is None or stop is not None:
            return text, num_tokens, stop
        return text + self._rest(stop_id), len(output.token_ids), None

    def _decode(self, token_ids: Sequence[int]) -> str:
        pieces = self._pieces
        data = self._pending + b"".join([pieces[token_id] for token_id in token_ids])
        text, num_used = codecs.utf_8_decode(data, "replace", False)
        self._pending = data[num_used:]
        return text

    def _search(self, finder: StopFinder, token_ids: Sequence[int]) -> tuple[str, int, str | None]:
        parts = [finder.held(self._state)]
        for index, token_id in enumerate(token_ids):
            self.num_tokens += 1
            piece = self._decode((token_id,))
            num_thought = self._thought.read(piece)
            parts.append(piece[:num_thought])
            piece = piece[num_thought:]
            found = self._read(finder, piece)
            if found is not None:
                text = "".join(parts) + piece[: found.num_read]
                return text if self._options.include_stop else text[: -len(found.stop)], index + 1, found.stop
            parts.append(piece)
        text, held = "".join(parts), finder.held(self._state)
        return text[: len(text) - len(held)], len(token_ids), None

    def _read(self, finder: StopFinder, piece: str) -> Found | None:
        if self.num_tokens <= self._options.min_new_tokens:
            self._state = finder.read_past(self._state, piece)
            return None
        self._state, found = finder.read(self._state, piece)
        return found

    def _rest(self, stop_id: int | None) -> str:
        """What was held back at the end of the request, and the stop token if it belongs to the text."""
        text = self._finder.held(self._state) if self._finder is not None else ""
        if stop_id is None:
            return text
        self.num_tokens += 1
        return text + self._decode((stop_id,)) if self._options.include_stop else text
