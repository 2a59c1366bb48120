"""Turns GGUF's tensors into those of a Hugging Face checkpoint: their names, row order and values.

Quantised weights become float32: float16 would round what llama.cpp computes with (Q4_1 adds two float16 numbers after
a multiplication), and a test against another program would then compare roundings. F16 and BF16 stay as they are.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from corymb.models.errors import SourceError
from corymb.models.gguf_config import GgufModel
from corymb.models.gguf_file import GgufTensor
from corymb.models.progress import OnProgress

_CHUNK_VALUES = 1 << 19  # two megabytes of float32 stay in a core's cache
_KEPT = {"F16": "F16", "BF16": "BF16"}  # written as stored; everything else becomes F32

_OUTER = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_HEAD = {"output.weight": "lm_head.weight"}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NORMS = {
    False: {"ffn_norm": "post_attention_layernorm"},
    True: {  # Gemma 3 norms before and after both halves of a layer
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
}
_NOT_WEIGHTS = frozenset({"rope_freqs.weight"})  # read by `gguf_config`


@dataclass(frozen=True, slots=True)
class _Written:
    """One tensor of the new file."""

    name: str
    dtype: str
    source: GgufTensor
    row_order: npt.NDArray[np.int64] | None
    plus: float

    @property
    def size_bytes(self) -> int:
        return math.prod(self.source.shape) * (2 if self.dtype in _KEPT else 4)

    def chunks(self) -> Iterator[npt.NDArray[np.generic]]:
        """The values in order, a few rows at a time."""
        rows = self.source.rows
        step = max(1, _CHUNK_VALUES // self.source.shape[-1])
        for begin in range(0, len(rows), step):
            some = rows[begin : begin + step] if self.row_order is None else rows[self.row_order[begin : begin + step]]
            yield self._values(np.ascontiguousarray(some))

    def _values(self, rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.generic]:
        if self.dtype in _KEPT:
            return rows
        values = self.source.format.decode(rows.reshape(-1, self.source.format.block_bytes))
        return values + np.float32(self.plus) if self.plus else values


def write_weights(model: GgufModel, path: Path, on_progress: OnProgress, what: str) -> None:
    """Writes all weights as one safetensors file, a chunk at a time, so that memory stays small."""
    written = _translations(model)
    total = sum(tensor.size_bytes for tensor in written)
    done = 0
    with path.open("wb") as out:
        out.write(_header(written))
        for tensor in written:
            for chunk in tensor.chunks():
                out.write(chunk.data)
                done += chunk.nbytes
                on_progress(what, done, total)
        # The folder is renamed next: after a power cut it must not be there with holes in it.
        out.flush()
        os.fsync(out.fileno())


def weights_size_bytes(model: GgufModel) -> int:
    """How large the file of `write_weights` will be, but for its head."""
    return sum(tensor.size_bytes for tensor in _translations(model))


def weight_dtype(model: GgufModel) -> str:
    """The dtype that most values are written in, as config.json names it."""
    counts = {"F32": 0, "F16": 0, "BF16": 0}
    for tensor in model.file.tensors.values():
        counts[_KEPT.get(tensor.format.name, "F32")] += math.prod(tensor.shape)
    most = max(counts, key=lambda dtype: counts[dtype])
    return {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[most]


def _translations(model: GgufModel) -> list[_Written]:
    return [_translate(model, tensor) for name, tensor in model.file.tensors.items() if name not in _NOT_WEIGHTS]


def _translate(model: GgufModel, tensor: GgufTensor) -> _Written:
    name = _new_name(tensor.name, norms_both_sides=model.is_gemma)
    if name is None:
        raise SourceError(f"{model.file.path}: tensor {tensor.name} has no place in a {model.architecture} model.")
    dtype = _KEPT.get(tensor.format.name, "F32")
    order = _row_order(model, tensor) if model.rope_is_interleaved else None
    # llama.cpp stores Gemma's norm weights with the 1 added that the model adds when it runs.
    plus = -1.0 if model.is_gemma and name.endswith("norm.weight") else 0.0
    return _Written(name, dtype, tensor, order, plus)


def _new_name(name: str, *, norms_both_sides: bool) -> str | None:
    if name in _OUTER:
        return _OUTER[name]
    if name in _HEAD:
        return _HEAD[name]
    parts = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if parts is None:
        return None
    layer, inner, kind = parts.groups()
    inner = (_INNER | _NORMS[norms_both_sides]).get(inner)
    return f"model.layers.{layer}.{inner}.{kind}" if inner else None


def _row_order(model: GgufModel, tensor: GgufTensor) -> npt.NDArray[np.int64] | None:
    """Where each row of Hugging Face's order lies in llama.cpp's, which interleaves the two halves of a head."""
    heads = {"attn_q": model.num_heads, "attn_k": model.num_kv_heads}
    num_heads = next((number for name, number in heads.items() if f".{name}." in tensor.name), None)
    if num_heads is None:
        return None
    num_rows = tensor.shape[0]
    if num_rows != num_heads * model.head_dim or model.head_dim % 2:
        raise SourceError(
            f"{model.file.path}: {tensor.name} has {num_rows} rows, which are not {num_heads} whole heads."
        )
    return np.arange(num_rows).reshape(num_heads, model.head_dim // 2, 2).swapaxes(1, 2).reshape(-1)


def _header(written: Sequence[_Written]) -> bytes:
    """The head of a safetensors file: its length, then a JSON table, padded so that the values lie aligned."""
    table: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for tensor in written:
        shape = list(tensor.source.shape)
        table[tensor.name] = {"dtype": tensor.dtype, "shape": shape, "data_offsets": [at, at + tensor.size_bytes]}
        at += tensor.size_bytes
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
