"""The byte tokenizer of the test models: ids 0 to 255 are bytes, then eight special tokens."""

import re
from collections.abc import Sequence

SPECIAL = ["<bos>", "<eos>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
VOCAB_SIZE = 264
EOS_IDS = (257, 259)
_SPLIT = re.compile("(" + "|".join(map(re.escape, SPECIAL)) + ")")


class ByteTokenizer:
    """What `serve` calls a tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = []
        for part in _SPLIT.split(text):
            ids += [256 + SPECIAL.index(part)] if part in SPECIAL else part.encode()
        return ids

    def fewest_tokens(self, text: str) -> int:
        return -(-len(text) // 12)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        parts = [b"" if i >= 256 and skip_special_tokens else self.token_bytes(i) for i in token_ids]
        return b"".join(parts).decode(errors="replace")

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else SPECIAL[token_id - 256].encode()

    def is_special(self, token_id: int) -> bool:
        return token_id >= 256


class ChatMl:
    """The test models' chat template, in Python."""

    def render(self, messages, *, tools=None, add_generation_prompt=True, kwargs=None) -> str:
        from corymb.serve.sandbox import TemplateError

        if kwargs and kwargs.get("refuse"):
            raise TemplateError("refused as asked")
        text = ""
        for message in messages:
            text += f"<|im_start|>{message['role']}\n{message['content']}"
            for call in message.get("tool_calls", []):
                function = call["function"]
                text += f"<tool_call>{function['name']} {function['arguments']}</tool_call>"
            text += "<|im_end|>\n"
        return text + ("<|im_start|>assistant\n" if add_generation_prompt else "")
