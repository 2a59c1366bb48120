"""Answers of /v1/chat/completions."""

from collections.abc import Sequence

from corymb.scheduler.messages import Finish
from corymb.serve import logprobs as spell
from corymb.serve.answer import Choice, Head, Part, encode, finish_json, joined
from corymb.serve.events import Content, Event, Finished, Reasoning, ToolArguments, ToolOpened
from corymb.serve.json_arguments import is_cut
from corymb.serve.openai_answer import OpenAIAnswer
from corymb.serve.stream_usage import StreamUsage
from corymb.serve.usage import Usage


class ChatAnswer(OpenAIAnswer):
    """Spells chat completions.

    `legacy`: a call is the older `function_call`, of which an answer has one at most.
    """

    said = b"delta"

    def __init__(
        self, head: Head, chunk_head: Head, *, usage: Usage, stream_usage: StreamUsage, legacy: bool = False
    ) -> None:
        super().__init__(head, chunk_head, usage=usage, stream_usage=stream_usage)
        self._legacy = legacy
        self._opened: set[int] = set()
        self._calls: dict[int, Part] = {}  # the last of each choice

    def spell(self, index: int, events: Sequence[Event]) -> bytes:
        """The role once, then what the choice says, then the reason of the finish once."""
        spelled = b"".join([self._spell_one(index, event) for event in events])
        if index not in self._opened:
            self._opened.add(index)
            return self._chunk(index, b'{"role":"assistant","content":""}') + spelled
        if not spelled and self._stream_usage.always:
            return self._chunk(index, b'{"content":""}')
        return spelled

    def _spell_one(self, index: int, event: Event) -> bytes:
        if isinstance(event, Content):  # first: nearly all are
            if not event.text and not event.logprobs:
                return b""
            logprobs = encode(spell.chat(event.logprobs)) if event.logprobs else b"null"
            return self._chunk(index, b'{"content":%b}' % encode(event.text), logprobs)
        match event:
            case Reasoning(text):
                return self._chunk(index, b'{"reasoning_content":%b}' % encode(text))
            case ToolOpened(call, id, name):
                self._calls[index] = Part("call", id, name)
                function = b'{"name":%b,"arguments":""}' % encode(name)
                if self._legacy:
                    return self._chunk(index, b'{"function_call":%b}' % function)
                opening = b'{"index":%d,"id":%b,"type":"function","function":%b}' % (call, encode(id), function)
                return self._chunk(index, b'{"tool_calls":[%b]}' % opening)
            case ToolArguments(call, fragment):
                self._calls[index].pieces.append(fragment)
                if self._legacy:
                    return self._chunk(index, b'{"function_call":{"arguments":%b}}' % encode(fragment))
                more = b'{"index":%d,"function":{"arguments":%b}}' % (call, encode(fragment))
                return self._chunk(index, b'{"tool_calls":[%b]}' % more)
            case Finished(finish):
                called = self._reason(self._calls.get(index), finish)
                return self._chunk(index, b"{}", finish=finish_json(finish, called=called))

    def _choice(self, index: int, choice: Choice) -> bytes:
        assert choice.finish is not None
        calls = choice.calls
        # OpenAI's null: nothing but calls was said.
        content = b"null" if calls and not choice.text else encode(choice.text)
        message = b'{"role":"assistant","content":%b,"refusal":null,"annotations":[]' % content
        if choice.reasoning:
            message += b',"reasoning_content":%b' % encode(choice.reasoning)
        if calls:
            message += self._spell_calls(calls)
        logprobs = encode(spell.chat(choice.logprobs)) if choice.logprobs else b"null"
        called = self._reason(calls[-1] if calls else None, choice.finish)
        parts = (index, message, logprobs, finish_json(choice.finish, called=called))
        return b'{"index":%d,"message":%b},"logprobs":%b,%b}' % parts

    def _spell_calls(self, calls: Sequence[Part]) -> bytes:
        if self._legacy:
            return b',"function_call":%b' % _function(calls[0])
        spelled = [b'{"id":%b,"type":"function","function":%b}' % (encode(call.id), _function(call)) for call in calls]
        return b',"tool_calls":%b' % joined(spelled)

    def _reason(self, last_call: Part | None, finish: Finish) -> str:
        """Why it finished, if for its calls: who reads this runs them. One that broke off is not to be run."""
        if last_call is None or is_cut(last_call, finish):
            return ""
        return "function_call" if self._legacy else "tool_calls"


def _function(call: Part) -> bytes:
    return b'{"name":%b,"arguments":%b}' % (encode(call.name), encode(call.text))
