"""What to say to the model `tape`."""

import json


def tape(text: str) -> str:
    """A prompt that makes it answer `text`."""
    return "TAPE " + json.dumps(text, ensure_ascii=False)


def call(name: str, /, **arguments: object) -> str:
    """A tool call as the Hermes and Qwen families write it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"
