"""The script inside a prompt that the test model `tape` follows."""

import json
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from corymb.models.model import Prompts
from corymb.scheduler.plan import Int32

NO_TOKEN = 264  # one past the vocabulary: no logit stands out
_EOS = 257
_AFTER_SPECIAL = ord("x")
_START = "TAPE "
_USER = "<|im_start|>user\n"
_END = "<|im_end|>"


class Tapes:
    """Owns the tape of every row's prompt, parsed when a step first meets the prompt."""

    def __init__(self, special_tokens: Sequence[str]) -> None:
        self._special = tuple(special_tokens)
        self._pattern = re.compile("|".join(map(re.escape, special_tokens)))
        self._second = np.append(_second_best(256 + len(special_tokens)), NO_TOKEN)
        self._prompts: list[Int32 | None] = []
        self._num_prompt: NDArray[np.int64] = np.zeros(0, np.int64)
        self._num_tape: NDArray[np.int64] = np.zeros(0, np.int64)
        self._tapes: NDArray[np.int64] = np.full((0, 64), _EOS)

    def read(self, rows: Int32, starts: Int32, widths: Int32, prompts: Prompts) -> NDArray[np.int64]:
        """The tape's token and the second best at every new position [T, 2]; NO_TOKEN before the prompt's last."""
        self._follow(rows.tolist(), prompts)
        if int(widths.sum()) > len(widths):
            first = np.cumsum(widths) - widths
            starts = np.arange(int(widths.sum())) + np.repeat(starts - first, widths)
            rows = np.repeat(rows, widths)
        index = starts + 1 - self._num_prompt[rows]
        token_ids = self._tapes[rows, np.clip(index, 0, self._num_tape[rows])]
        token_ids[index < 0] = NO_TOKEN
        return np.stack((token_ids, self._second[token_ids]), axis=1)

    def parse(self, prompt_ids: Int32) -> list[int]:
        """The tape of a prompt; empty where there is none."""
        text = _last_user_text(self._text(prompt_ids))
        if not text.startswith(_START):
            return []
        try:
            script, end = json.JSONDecoder(strict=False).raw_decode(text, len(_START))
        except ValueError:
            return []
        rest = text[end:].lstrip()
        if not isinstance(script, str) or (rest and not rest.startswith(_END)):
            return []
        return self._token_ids(script)

    def _follow(self, rows: list[int], prompts: Prompts) -> None:
        missing = max(rows) + 1 - len(self._prompts)
        if missing > 0:
            self._prompts += [None] * missing
            self._num_prompt = np.pad(self._num_prompt, (0, missing))
            self._num_tape = np.pad(self._num_tape, (0, missing))
            self._tapes = np.pad(self._tapes, ((0, missing), (0, 0)))
        for row in rows:
            if self._prompts[row] is not prompts[row]:
                self._load(row, prompts[row])

    def _load(self, row: int, prompt_ids: Int32) -> None:
        tape = self.parse(prompt_ids)
        width = self._tapes.shape[1]
        if len(tape) >= width:
            self._tapes = np.pad(self._tapes, ((0, 0), (0, max(width, len(tape) + 1 - width))))
        self._prompts[row] = prompt_ids
        self._num_prompt[row] = len(prompt_ids)
        self._num_tape[row] = len(tape)
        self._tapes[row, : len(tape)] = tape
        self._tapes[row, len(tape)] = _EOS

    def _text(self, prompt_ids: Int32) -> str:
        """The prompt with special tokens spelled out."""
        spelled = (
            bytes((token_id,)) if token_id < 256 else self._special[token_id - 256].encode()
            for token_id in prompt_ids.tolist()
        )
        return b"".join(spelled).decode(errors="replace")

    def _token_ids(self, text: str) -> list[int]:
        token_ids: list[int] = []
        end = 0
        for match in self._pattern.finditer(text):
            token_ids += _bytes(text[end : match.start()])
            token_ids.append(256 + self._special.index(match.group()))
            end = match.end()
        return token_ids + list(_bytes(text[end:]))


def _last_user_text(text: str) -> str:
    """What follows the last user mark of a chat prompt, or all of a plain one."""
    if text.removeprefix("<bos>").startswith(_START):
        return text.removeprefix("<bos>")
    return text[text.rfind(_USER) + len(_USER) :] if _USER in text else ""


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")  # JSON may escape half a surrogate pair


def _second_best(vocab_size: int) -> NDArray[np.int64]:
    token_ids = np.arange(vocab_size)
    return np.where(token_ids < 256, (token_ids + 1) % 256, _AFTER_SPECIAL)
