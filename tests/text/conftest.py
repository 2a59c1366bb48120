"""Small GGUF files, made by hand."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from corymb.serve.spelling import _BYTE_OF

_CODES = {np.dtype(np.float32): 0, np.dtype(np.float16): 1}
BYTE_PIECES = sorted(_BYTE_OF, key=lambda char: _BYTE_OF[char])


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<Ii", 5, value) if value < 0 else struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if value and isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_string, value))
    kind, dtype = (6, "<f4") if isinstance(value[0], float) else (5, "<i4")
    return struct.pack("<IIQ", 9, kind, len(value)) + np.array(value, dtype).tobytes()


def gguf_bytes(metadata: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> bytes:
    """A GGUF file of version 3 with tensors of float32 or float16."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(_string(key) + _value(value) for key, value in metadata.items())
    body = b""
    for name, array in tensors.items():
        dims = struct.pack(f"<{array.ndim}Q", *reversed(array.shape))
        head += _string(name) + struct.pack("<I", array.ndim) + dims
        head += struct.pack("<IQ", _CODES[array.dtype], len(body))
        body += array.tobytes() + b"\0" * (-array.nbytes % 32)
    return head + b"\0" * (-len(head) % 32) + body


class TinyModel:
    """A model of two layers, as metadata and tensors that a test may change before it writes them."""

    hidden, heads, kv_heads, inner, layers = 32, 4, 2, 48, 2

    def __init__(self, architecture: str = "llama") -> None:
        rng = np.random.default_rng(7)

        def random(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape, dtype=np.float32)

        pieces = ["<|end|>", *BYTE_PIECES, "Ġa", "Ġab"]
        self.metadata: dict[str, Any] = {
            "general.architecture": architecture,
            f"{architecture}.block_count": self.layers,
            f"{architecture}.context_length": 128,
            f"{architecture}.embedding_length": self.hidden,
            f"{architecture}.feed_forward_length": self.inner,
            f"{architecture}.attention.head_count": self.heads,
            f"{architecture}.attention.head_count_kv": self.kv_heads,
            f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
            f"{architecture}.rope.freq_base": 500000.0,
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": pieces,
            "tokenizer.ggml.token_type": [3] + [1] * (len(pieces) - 1),
            "tokenizer.ggml.merges": ["Ġ a", "Ġa b"],
            "tokenizer.ggml.eos_token_id": 0,
        }
        width, kv_width = self.hidden, self.hidden // 2
        self.tensors = {"token_embd.weight": random(len(pieces), width), "output_norm.weight": random(width)}
        for layer in range(self.layers):
            shapes = {
                "attn_norm": (width,),
                "attn_q": (width, width),
                "attn_k": (kv_width, width),
                "attn_v": (kv_width, width),
                "attn_output": (width, width),
                "ffn_norm": (width,),
                "ffn_gate": (self.inner, width),
                "ffn_up": (self.inner, width),
                "ffn_down": (width, self.inner),
            }
            self.tensors |= {f"blk.{layer}.{name}.weight": random(*shape) for name, shape in shapes.items()}

    def to_bytes(self) -> bytes:
        return gguf_bytes(self.metadata, self.tensors)

    def write(self, path: Path) -> Path:
        path.write_bytes(self.to_bytes())
        return path


@pytest.fixture
def tiny():
    """The class `TinyModel`."""
    return TinyModel


@pytest.fixture
def data() -> Path:
    """The folder of values carried over from other programs."""
    return Path(__file__).with_name("data")
