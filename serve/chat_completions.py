"""POST /v1/chat/completions."""

from corymb.serve.answer import Head
from corymb.serve.body import read_json
from corymb.serve.call import Call
from corymb.serve.chat_answer import ChatAnswer
from corymb.serve.chatting import Chatting
from corymb.serve.conversation import conversation_fields
from corymb.serve.engine import ServedModel
from corymb.serve.fields import Field, boolean, ignored, integer, refused, string
from corymb.serve.grammar_fields import format_members, response_format_field
from corymb.serve.parts import Parts
from corymb.serve.reasoning import reasoning_fields
from corymb.serve.requests import generate, name_ignored_members, now_s, read_fields, read_model, request_fields, table
from corymb.serve.sampling_fields import MAX_NEW_TOKENS, MAX_TOP_LOGPROBS, sampling_fields, structure_fields
from corymb.serve.settings import HttpSettings
from corymb.serve.stream_usage import read_stream_options, stream_usage
from corymb.serve.tools import tool_fields


def chat_fields(info: ServedModel, settings: HttpSettings) -> dict[str, Field]:
    """Every field of a chat completion that we know."""
    own = [
        string("model", 256),
        integer("max_tokens", 0, MAX_NEW_TOKENS),
        integer("max_completion_tokens", 0, MAX_NEW_TOKENS),
        integer("min_tokens", 0, MAX_NEW_TOKENS),
        boolean("logprobs"),
        integer("top_logprobs", 0, MAX_TOP_LOGPROBS),
        boolean("stream"),
        Field("stream_options", "object: include_usage, continuous_usage_stats", read_stream_options),
        boolean("include_stop_str_in_output"),
        response_format_field(),
    ]
    others = [
        refused("prompt", "use /v1/completions"),
        refused("max_new_tokens", "use `max_tokens`"),
        refused("echo", "use /v1/completions", False),
        refused("modalities", "this server writes text only", ["text"]),
        refused("audio", "this server writes text only"),
        refused("web_search_options", "this server does not search"),
        refused("prompt_logprobs", "use /v1/completions with `echo` and `logprobs`", False),
        refused("best_of", "use `n`", 1),
        ignored("user", "not used"),
        ignored("store", "nothing is stored"),
        ignored("metadata", "nothing is stored"),
        ignored("prediction", "a hint that may only change speed"),
        ignored("prompt_cache_key", "the cache finds prefixes by itself; see `cache_salt`"),
        ignored("safety_identifier", "not used"),
        ignored("service_tier", "there is one"),
        ignored("prompt_cache_options", "the cache finds prefixes by itself"),
        ignored("prompt_cache_retention", "what was used last stays longest"),
        ignored("verbosity", "say it in the messages"),
        refused("moderation", "this server does not moderate"),
    ]
    shared = (sampling_fields(info.vocab_size), request_fields(settings), structure_fields())
    return table(own, others, conversation_fields(), tool_fields(), reasoning_fields(settings), *shared)


class ChatCompletions:
    """Reads, runs and answers chat completions."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._fields = chat_fields(parts.engine.info, parts.settings)
        self._chatting = Chatting(parts)

    async def __call__(self, call: Call) -> None:
        """Handles one request."""
        body = await read_json(call, self._parts.settings)
        values = read_fields(self._fields, body, call)
        name_ignored_members(call, body, format_members(body))
        model = read_model(self._parts.engine.info, values)
        limit = "max_completion_tokens" if "max_completion_tokens" in values else "max_tokens"
        if limit in values:
            values["max_tokens"] = values[limit]
        generation = await self._chatting.generation(values, kind="chatcmpl", limit=limit)
        rid = generation.asks[0].rid
        answer = ChatAnswer(
            Head(rid, "chat.completion", now_s(), model),
            Head(rid, "chat.completion.chunk", now_s(), model),
            usage=generation.usage,
            stream_usage=stream_usage(call, body, values),
            legacy="functions" in values,
        )
        await generate(call, self._parts, generation, answer, stream=values.get("stream", False))
