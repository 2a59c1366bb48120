"""JSON Schemas of answers, errors among them."""

from collections.abc import Sequence

from corymb.serve.shapes import COUNT, FLAG, NUMBER, OBJECT, TEXT, Schema, array, either, enum, or_null, record

FINISH = enum("stop", "length", "tool_calls", "abort")
MATCHED = either(TEXT, COUNT, {"type": "null"})
USAGE = record(
    {
        "prompt_tokens": COUNT,
        "completion_tokens": COUNT,
        "total_tokens": COUNT,
        "prompt_tokens_details": record({"cached_tokens": COUNT}),
        "completion_tokens_details": record({"reasoning_tokens": COUNT}),
    }
)
_LOGPROB = {"token": TEXT, "logprob": NUMBER, "bytes": array({"type": "integer", "minimum": 0, "maximum": 255})}
_LOGPROBS = record({"content": array(record({**_LOGPROB, "top_logprobs": array(record(_LOGPROB))}))})
_MESSAGE = record(
    {"role": enum("assistant"), "content": or_null(TEXT)},
    {
        "reasoning_content": or_null(TEXT),
        "refusal": {"type": "null"},
        "tool_calls": array(
            record({"id": TEXT, "type": enum("function"), "function": record({"name": TEXT, "arguments": TEXT})})
        ),
    },
)
_HEAD = {"id": TEXT, "created": COUNT, "model": TEXT}
_ENDED = {"index": COUNT, "finish_reason": FINISH, "matched_stop": MATCHED}
CHAT = record(
    {
        **_HEAD,
        "object": enum("chat.completion"),
        "choices": array(record({**_ENDED, "message": _MESSAGE, "logprobs": or_null(_LOGPROBS)})),
        "usage": USAGE,
    }
)
COMPLETION = record(
    {
        **_HEAD,
        "object": enum("text_completion"),
        "choices": array(
            record(
                {
                    **_ENDED,
                    "text": TEXT,
                    "logprobs": or_null(
                        record(
                            {
                                "tokens": array(TEXT),
                                "token_logprobs": array(or_null(NUMBER)),
                                "top_logprobs": array(or_null(OBJECT)),
                                "text_offset": array(COUNT),
                            }
                        )
                    ),
                }
            )
        ),
        "usage": USAGE,
    }
)
_GENERATED = record(
    {
        "text": TEXT,
        "output_ids": array(COUNT),
        "meta_info": record(
            {
                "id": TEXT,
                "finish_reason": or_null(record({"type": TEXT})),
                "prompt_tokens": COUNT,
                "completion_tokens": COUNT,
                "cached_tokens": COUNT,
            }
        ),
    }
)
GENERATED = either(_GENERATED, array(_GENERATED))
TOKENIZED = record(
    {
        "tokens": either(array(COUNT), array(array(COUNT))),
        "count": either(COUNT, array(COUNT)),
        "max_model_len": COUNT,
    },
    {"prompt": TEXT},
)
DETOKENIZED = record({"text": either(TEXT, array(TEXT))})
MODEL = record({"id": TEXT, "object": enum("model"), "created": COUNT, "owned_by": TEXT, "max_model_len": COUNT})
MODELS = record({"object": enum("list"), "data": array(MODEL)})
DONE = record({"success": FLAG})
HEALTHY = record({"status": enum("ok")})
MODEL_INFO = record({"model_path": TEXT, "served_model_name": TEXT, "is_generation": FLAG, "vocab_size": COUNT})
SERVER_INFO = record({"state": TEXT, "served_model_names": array(TEXT), "max_total_num_tokens": COUNT})
_BLOCK = record({"type": enum("text", "thinking", "tool_use")})
MESSAGE = record(
    {
        "id": TEXT,
        "type": enum("message"),
        "role": enum("assistant"),
        "model": TEXT,
        "content": array(_BLOCK),
        "stop_reason": or_null(TEXT),
        "stop_sequence": or_null(TEXT),
        "usage": record({"input_tokens": COUNT, "output_tokens": COUNT, "cache_read_input_tokens": COUNT}),
    }
)
RESPONSE = record(
    {
        "id": TEXT,
        "object": enum("response"),
        "status": enum("completed", "incomplete", "failed", "cancelled"),
        "model": TEXT,
        "output": array(record({"type": TEXT})),
        "usage": or_null(record({"input_tokens": COUNT, "output_tokens": COUNT, "total_tokens": COUNT})),
    }
)
OLLAMA = record({"model": TEXT, "created_at": TEXT, "done": FLAG})
EMBEDDINGS = record(
    {
        "object": enum("list"),
        "data": array(record({"object": enum("embedding"), "index": COUNT, "embedding": either(TEXT, array(NUMBER))})),
        "model": TEXT,
        "usage": record({"prompt_tokens": COUNT, "total_tokens": COUNT}),
    }
)
PARSED = record({"normal_text": TEXT, "calls": array(record({"tool_index": COUNT, "name": TEXT, "parameters": TEXT}))})
SEPARATED = record({"reasoning_text": TEXT, "text": TEXT})
SCORES = record({"object": enum("scoring"), "scores": array({}), "model": TEXT})
RANKED = record({"id": TEXT, "model": TEXT, "results": array(record({"index": COUNT, "relevance_score": NUMBER}))})
_JUDGED = {"prompt_tokens": COUNT, "total_tokens": COUNT}
DECIDED = record(
    {
        "id": TEXT,
        "object": enum("decisions"),
        "created": COUNT,
        "model": TEXT,
        "prompt_format_version": COUNT,
        "decisions": array(
            record(
                {
                    "id": TEXT,
                    "type": enum("choice", "score", "yes_no"),
                    "probabilities": {"type": "object", "additionalProperties": NUMBER},
                    "label_mass": NUMBER,
                },
                {"choice": TEXT, "score": NUMBER, "prompt_token_ids": array(COUNT)},
            )
        ),
        "usage": record(_JUDGED),
    }
)
_NAMED = record({"id": TEXT, "object": enum("response")}, {"deleted": enum(True), "status": enum("cancelled")})
STORED = either(RESPONSE, _NAMED)  # or its items, below `/input_items`
_CARD = record(
    {"name": TEXT, "model": TEXT, "modified_at": TEXT, "size": COUNT, "digest": TEXT, "details": OBJECT},
    {"size_vram": COUNT},
)
OLLAMA_MODELS = record({"models": array(_CARD)})
OLLAMA_VERSION = record({"version": TEXT})
OLLAMA_SHOWN = record(
    {"modified_at": TEXT, "parameters": TEXT, "details": OBJECT, "model_info": OBJECT, "capabilities": array(TEXT)}
)
OLLAMA_VECTORS = record({"model": TEXT, "embeddings": array(array(NUMBER)), "prompt_eval_count": COUNT})
_LOAD = {
    "dp_rank": COUNT,
    "num_running_reqs": COUNT,
    "num_waiting_reqs": COUNT,
    "num_total_reqs": COUNT,
    "num_used_tokens": COUNT,
    "max_total_num_tokens": COUNT,
    "token_usage": {"type": "number", "minimum": 0, "maximum": 1},
    "is_paused": FLAG,
}
LOADS = record({"timestamp": NUMBER, "dp_rank_count": COUNT, "loads": array(record(_LOAD))})
OBEYED = record({"success": FLAG, "message": TEXT}, {"num_aborted": COUNT})
TREE = record(
    {
        "num_nodes": COUNT,
        "truncated": FLAG,
        "nodes": array(
            record(
                {
                    "id": COUNT,
                    "parent": or_null(COUNT),
                    "length": COUNT,
                    "leases": COUNT,
                    "age": COUNT,
                    "components": {"type": "object", "additionalProperties": COUNT},
                }
            )
        ),
    }
)
COUNTED = record({"input_tokens": COUNT})
INPUT_TOKENS = record({"object": enum("response.input_tokens"), "input_tokens": COUNT})


def error(kinds: Sequence[str]) -> Schema:
    """The shape of OpenAI's errors, with the codes there are."""
    members = {"message": TEXT, "type": TEXT, "param": or_null(TEXT), "code": enum(*kinds)}
    return {**record({"error": record(members)}), "additionalProperties": False}


ANTHROPIC_ERROR = record({"type": enum("error"), "error": record({"type": TEXT, "message": TEXT})})
OLLAMA_ERROR = record({"error": TEXT})
