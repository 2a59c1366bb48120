"""From a conversation to a generation: what every dialect that chats shares."""

from typing import Any

from corymb.serve.answer_plan import plan_answer
from corymb.serve.asks import Ask, Room, check_choices
from corymb.serve.conversation import Conversation, Rendered
from corymb.serve.errors import invalid
from corymb.serve.generation import Generation
from corymb.serve.grammar_fields import one_grammar
from corymb.serve.output_parser import OutputParsers
from corymb.serve.parts import Parts
from corymb.serve.prompts import PromptEncoder, encode_prompts
from corymb.serve.requests import new_rid, routing
from corymb.serve.sampling_fields import check_min, openai_logprobs, sampling, text_options


class Chatting:
    """Takes checked values by the names that /v1/chat/completions gives them; other dialects translate theirs."""

    def __init__(self, parts: Parts) -> None:
        info, settings = parts.engine.info, parts.settings
        self._parts = parts
        self._room = Room(info.context_length, settings.clamp_max_tokens, prompt="messages")
        self._encoder = PromptEncoder(parts.tokenizer, self._room)
        self._no_parsers = OutputParsers(None, None, parts.tokenizer)
        self._conversation = Conversation(parts.chat_template, self._encoder, short_ids=parts.parsers.short_ids)

    async def render(self, values: dict[str, Any]) -> Rendered:
        """The prompt that `generation` would send."""
        return await self._conversation.render(values)

    async def generation(
        self, values: dict[str, Any], *, kind: str, limit: str = "max_tokens", raw: str | None = None
    ) -> Generation:
        """What to run.

        `kind`: the beginning of its name. `limit`: how the client calls the limit on new tokens. `raw`: a prompt that
        takes the place of the conversation, past the chat template.
        """
        check_choices(1, values.get("n", 1), self._parts.settings.max_choices)
        logprobs = openai_logprobs(_top_logprobs(values))
        prompt = await (self.render(values) if raw is None else self._encode(raw))
        max_new = self._room.new_tokens(len(prompt.token_ids), values.get("max_tokens"), None, param=limit)
        min_new = values.get("min_tokens", 0)
        check_min("min_tokens", min_new, max_new, limit=limit)
        settings, vocab_size = self._parts.settings, self._parts.engine.info.vocab_size
        asked = sampling(values, settings, max_new=max_new, min_new=min_new, vocab_size=vocab_size)
        parsers = self._parts.parsers if raw is None else self._no_parsers
        plan = plan_answer(parsers, values, prompt.text, one_grammar(values))
        ask = Ask(
            rid=values.get("rid") or new_rid(kind),
            token_ids=prompt.token_ids,
            sampling=plan.sampling(asked),
            text=plan.text(text_options(values, min_new=min_new)),
            logprobs=logprobs,
            n=values.get("n", 1),
            routing=routing(values),
            grammar_param=plan.wanted.param if plan.wanted is not None else "",
        )
        parser = plan.reading.parser if plan.reading.looks else None
        return Generation([ask], make_parser=parser, reasoning_end_ids=self._parts.parsers.mark_ids.closing)

    async def _encode(self, text: str) -> Rendered:
        (prompt,) = await encode_prompts("prompt", [text], self._encoder, add_special_tokens=True)
        return Rendered(text, prompt.token_ids)


def _top_logprobs(values: dict[str, Any]) -> int | None:
    if values.get("logprobs"):
        return int(values.get("top_logprobs", 0))
    if values.get("top_logprobs"):
        raise invalid("top_logprobs", "needs `logprobs` to be true.")
    return None
