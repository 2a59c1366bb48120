"""Turns GGUF's metadata into config.json and generation_config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from corymb.models.errors import SourceError
from corymb.models.gguf_file import GgufFile

Json = dict[str, Any]

_CLASSES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text"),
}
_LAYERS_OF_27B = 62
_GEMMA_PERIOD = 6  # every sixth layer of Gemma 3 attends to everything


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A GGUF file whose architecture is known."""

    file: GgufFile
    architecture: str

    @property
    def is_gemma(self) -> bool:
        """Whether the norms have Gemma's form."""
        return self.architecture == "gemma3"

    @property
    def rope_is_interleaved(self) -> bool:
        """Whether llama.cpp reordered query and key rows for its kind of rotation."""
        return self.architecture == "llama"

    @property
    def num_heads(self) -> int:
        """Query heads."""
        return self.number("attention.head_count")

    @property
    def num_kv_heads(self) -> int:
        """Key and value heads."""
        return self.number("attention.head_count_kv", self.num_heads)

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.number("attention.key_length", self.number("embedding_length") // max(self.num_heads, 1))

    def get(self, key: str, default: Any = None) -> Any:
        """The architecture's own value `key`."""
        return self.file.metadata.get(f"{self.architecture}.{key}", default)

    def number(self, key: str, default: int | None = None) -> int:
        """The architecture's own whole number `key`, which must be there if there is no default."""
        value = self.get(key, default)
        if not isinstance(value, int):
            raise SourceError(
                f"{self.file.path}: '{self.architecture}.{key}' should be one whole number, not {value!r}."
            )
        return value


def known_model(file: GgufFile) -> GgufModel:
    """Checks that the file's architecture can be served; raises SourceError with the list of those that can."""
    architecture = file.metadata.get("general.architecture")
    known = ", ".join(_CLASSES)
    if architecture not in _CLASSES:
        raise SourceError(
            f"{file.path} holds a model of architecture {architecture!r}; GGUF files of {known} can be read."
        )
    if int(file.metadata.get("split.count", 1)) > 1:
        raise SourceError(f"{file.path} is one of several parts; join them with 'llama-gguf-split --merge' first.")
    model = GgufModel(file, architecture)
    if model.get("expert_count", 0):
        raise SourceError(f"{file.path} holds a mixture of experts, which GGUF reading does not cover yet.")
    if "token_embd.weight" not in file.tensors:
        raise SourceError(f"{file.path} has no token embeddings: it holds no language model.")
    return model


def config(model: GgufModel, dtype: str) -> Json:
    """What config.json says of the model; `dtype` is the one its weights are written in."""
    name, kind = _CLASSES[model.architecture]
    embedding = model.file.tensors["token_embd.weight"]
    rope_theta = float(model.get("rope.freq_base", 10000.0))
    values: Json = {
        "architectures": [name],
        "model_type": kind,
        "vocab_size": embedding.shape[0],
        "hidden_size": model.number("embedding_length"),
        "intermediate_size": model.number("feed_forward_length"),
        "num_hidden_layers": model.number("block_count"),
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "max_position_embeddings": model.number("context_length"),
        "rms_norm_eps": _rounded(model.get("attention.layer_norm_rms_epsilon", 1e-6)),
        "rope_theta": rope_theta,
        "rope_scaling": _rope_scaling(model, rope_theta),
        "tie_word_embeddings": "output.weight" not in model.file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in model.file.tensors,
        "hidden_act": "silu",
        "dtype": dtype,
        "torch_dtype": dtype,
    }
    if model.is_gemma:
        values |= _gemma(model)
    return values | _token_ids(model.file.metadata)


def generation_config(metadata: Mapping[str, Any]) -> Json:
    """What generation_config.json says: the ids that begin and end a text."""
    return _token_ids(metadata)


def _gemma(model: GgufModel) -> Json:
    num_layers = model.number("block_count")
    period = int(model.get("attention.sliding_window_pattern", _GEMMA_PERIOD))
    hidden = model.number("embedding_length")
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_act": "gelu_pytorch_tanh",
        "sliding_window": model.number("attention.sliding_window"),
        "layer_types": [
            "full_attention" if (layer + 1) % period == 0 else "sliding_attention" for layer in range(num_layers)
        ],
        "rope_local_base_freq": 10000.0,
        # The 27B model alone scales by its width a head (168) and not by the head's own (128).
        "query_pre_attn_scalar": hidden // model.num_heads if num_layers == _LAYERS_OF_27B else model.head_dim,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    }


def _token_ids(metadata: Mapping[str, Any]) -> Json:
    ends = [metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    unique = list(dict.fromkeys(int(end) for end in ends if end is not None))
    found = {
        "bos_token_id": metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": unique[0] if len(unique) == 1 else unique or None,
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
    }
    return {key: value for key, value in found.items() if value is not None}


def _rounded(value: float) -> float:
    """The decimal number that was meant by a float32: 1e-05 and not 9.999999747378752e-06."""
    return float(f"{value:.6g}")


def _rope_scaling(model: GgufModel, theta: float) -> Json | None:
    if "rope_freqs.weight" in model.file.tensors:
        return _llama3_scaling(model, theta)
    kind, factor = model.get("rope.scaling.type", "none"), float(model.get("rope.scaling.factor", 0.0))
    if kind == "none" or factor in (0.0, 1.0):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        original = int(model.get("rope.scaling.original_context_length", model.number("context_length")))
        return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    raise SourceError(f"{model.file.path} scales its rotary positions by {kind!r}; linear, yarn and llama3 are known.")


def _llama3_scaling(model: GgufModel, theta: float) -> Json:
    """Finds the parameters behind the frequency divisors that GGUF stores for Llama 3.1 and its successors."""
    tensor = model.file.tensors["rope_freqs.weight"]
    stored = tensor.format.decode(np.ascontiguousarray(tensor.rows).reshape(-1, tensor.format.block_bytes)).reshape(-1)
    factor = _rounded(float(stored.max()))
    scaling: Json = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    dim = int(model.get("rope.dimension_count", model.head_dim))
    wavelength = 2 * np.pi * theta ** (np.arange(0, dim, 2) / dim)
    smooth = np.clip((8192 / wavelength - 1.0) / (4.0 - 1.0), 0.0, 1.0)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if expected.shape != stored.shape or not np.allclose(expected, stored, rtol=1e-3):
        raise SourceError(f"{model.file.path} stores rotary frequencies (rope_freqs) of a kind that is not known.")
    return scaling
