"""Answers of /v1/completions."""

from collections.abc import Sequence
from dataclasses import dataclass

from corymb.scheduler.messages import TextLogprob
from corymb.serve.answer import Choice, Head, encode, finish_json
from corymb.serve.events import Content, Event, Finished
from corymb.serve.logprobs import CompletionLogprobs
from corymb.serve.openai_answer import OpenAIAnswer
from corymb.serve.prompts import Prompt
from corymb.serve.stream_usage import StreamUsage
from corymb.serve.tokenizer import Tokenizer
from corymb.serve.usage import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionView:
    """What the client wants to see of a completion."""

    prompts: Sequence[Prompt]
    n: int
    echo: bool
    logprobs: bool
    skip_special_tokens: bool


class CompletionAnswer(OpenAIAnswer):
    """Spells completions; with `echo`, each choice starts with its prompt."""

    said = b"text"

    def __init__(
        self, head: Head, view: CompletionView, tokenizer: Tokenizer, *, usage: Usage, stream_usage: StreamUsage
    ) -> None:
        super().__init__(head, head, usage=usage, stream_usage=stream_usage)
        self._view = view
        self._tokenizer = tokenizer
        self._spellers: dict[int, CompletionLogprobs] = {}

    def spell(self, index: int, events: Sequence[Event]) -> bytes:
        """Text as it comes, then the reason of the finish once."""
        is_last = isinstance(events[-1], Finished)
        return b"".join([self._spell_one(index, event, is_last=is_last) for event in events])

    def _spell_one(self, index: int, event: Event, *, is_last: bool) -> bytes:
        if isinstance(event, Finished):
            return self._chunk(index, b'""', finish=finish_json(event.finish))
        assert isinstance(event, Content), "completions are not parsed"
        is_first = index not in self._spellers
        speller = self._spellers.setdefault(index, CompletionLogprobs())
        text = (self._echo(index) if is_first and self._view.echo else "") + event.text
        logprobs = self._logprobs(index, speller, event.prompt_logprobs, event.logprobs)
        if text or logprobs != b"null" or (self._stream_usage.always and not is_last):
            return self._chunk(index, encode(text), logprobs)
        return b""

    def _choice(self, index: int, choice: Choice) -> bytes:
        assert choice.finish is not None
        text = (self._echo(index) if self._view.echo else "") + choice.text
        logprobs = self._logprobs(index, CompletionLogprobs(), choice.prompt_logprobs, choice.logprobs)
        parts = (index, encode(text), logprobs, finish_json(choice.finish))
        return b'{"index":%d,"text":%b,"logprobs":%b,%b}' % parts

    def _echo(self, index: int) -> str:
        prompt = self._view.prompts[index // self._view.n]
        if prompt.text is not None:
            return prompt.text
        return self._tokenizer.decode(prompt.token_ids, skip_special_tokens=False)

    def _logprobs(
        self,
        index: int,
        speller: CompletionLogprobs,
        prompt: Sequence[TextLogprob],
        generated: Sequence[TextLogprob],
    ) -> bytes:
        if not self._view.logprobs or not (prompt or generated):
            return b"null"
        silent = [*self._silent_in_prompt(index, prompt), *map(self._is_skipped, generated)]
        return encode(speller.json([*prompt, *generated], silent))

    def _silent_in_prompt(self, index: int, entries: Sequence[TextLogprob]) -> list[bool]:
        # A text is echoed as it was sent, without the token that the tokenizer put in front of it.
        text = self._view.prompts[index // self._view.n].text
        silent = [False] * len(entries)
        if entries and text is not None and not text.startswith(entries[0].token):
            silent[0] = self._tokenizer.is_special(entries[0].token_id)
        return silent

    def _is_skipped(self, entry: TextLogprob) -> bool:
        return self._view.skip_special_tokens and self._tokenizer.is_special(entry.token_id)
