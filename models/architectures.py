"""The architectures that can be served, and how each one's config.json reads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from corymb.models.config import DecoderConfig, ModelConfig
from corymb.models.deepseek_config import read_deepseek_v3, read_deepseek_v32, read_glm_moe_dsa
from corymb.models.errors import BrokenModel, UnsupportedModel
from corymb.models.falcon_h1_config import read_falcon_h1
from corymb.models.fields import Fields
from corymb.models.gemma_config import read_gemma2, read_gemma3, read_gemma3_with_vision
from corymb.models.lfm2_config import read_lfm2, read_lfm2_moe
from corymb.models.llama_config import read_llama, read_mistral, read_qwen2, read_qwen3, read_smollm3
from corymb.models.moe_config import read_gpt_oss, read_mixtral, read_qwen3_moe
from corymb.models.qwen_next_config import (
    read_qwen3_5,
    read_qwen3_5_moe,
    read_qwen3_5_moe_with_vision,
    read_qwen3_5_with_vision,
    read_qwen3_next,
)

DECODERS: dict[str, Callable[[Fields], DecoderConfig]] = {
    "LlamaForCausalLM": read_llama,
    "MistralForCausalLM": read_mistral,
    "Qwen2ForCausalLM": read_qwen2,
    "Qwen3ForCausalLM": read_qwen3,
    "SmolLM3ForCausalLM": read_smollm3,
    "MixtralForCausalLM": read_mixtral,
    "Qwen3MoeForCausalLM": read_qwen3_moe,
    "Qwen3NextForCausalLM": read_qwen3_next,
    "Qwen3_5ForCausalLM": read_qwen3_5,
    "Qwen3_5ForConditionalGeneration": read_qwen3_5_with_vision,
    "Qwen3_5MoeForCausalLM": read_qwen3_5_moe,
    "Qwen3_5MoeForConditionalGeneration": read_qwen3_5_moe_with_vision,
    "FalconH1ForCausalLM": read_falcon_h1,
    "Lfm2ForCausalLM": read_lfm2,
    "Lfm2MoeForCausalLM": read_lfm2_moe,
    "GptOssForCausalLM": read_gpt_oss,
    "DeepseekV3ForCausalLM": read_deepseek_v3,
    "DeepseekV32ForCausalLM": read_deepseek_v32,
    "GlmMoeDsaForCausalLM": read_glm_moe_dsa,
    "Gemma2ForCausalLM": read_gemma2,
    "Gemma3ForCausalLM": read_gemma3,
    "Gemma3ForConditionalGeneration": read_gemma3_with_vision,
}

TEST_MODELS = ("CorymbTape", "CorymbHash", "CorymbUniform")

DTYPES = ("float32", "float16", "bfloat16")

SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def read_config(folder: Path) -> ModelConfig:
    """Reads a model folder's configuration. Raises UnsupportedModel, BrokenModel."""
    fields = Fields.read(folder / "config.json")
    architecture = _architecture(fields)
    _refuse_quantized(fields)
    text = fields.inner("text_config") if fields.has("text_config") else fields
    generation = _generation(folder)
    decoder = DECODERS[architecture](fields) if architecture in DECODERS else None
    return ModelConfig(
        architecture=architecture,
        vocab_size=decoder.vocab_size if decoder else fields.whole("vocab_size"),
        context_length=decoder.context_length if decoder else fields.whole("max_position_embeddings"),
        eos_ids=_token_ids(fields, "eos_token_id")
        | _token_ids(text, "eos_token_id")
        | _token_ids(generation, "eos_token_id"),
        bos_id=min(_token_ids(text, "bos_token_id"), default=None),
        dtype=_dtype(fields, text),
        decoder=decoder,
        sampling={name: generation.values[name] for name in SAMPLING_FIELDS if generation.has(name)},
    )


def _architecture(fields: Fields) -> str:
    names = fields.items("architectures")
    if len(names) != 1 or not isinstance(names[0], str):
        raise BrokenModel(f"architectures in {fields.where} must name one architecture, not {names!r}.")
    if names[0] not in DECODERS and names[0] not in TEST_MODELS:
        raise UnsupportedModel(f"Architecture {names[0]} is not supported; supported are {', '.join(DECODERS)}.")
    return names[0]


def _refuse_quantized(fields: Fields) -> None:
    if not fields.has("quantization_config"):
        return
    method = fields.inner("quantization_config").text("quant_method", "unknown")
    if method == "mxfp4":
        return  # gpt-oss's experts: unpacked when they are read
    raise UnsupportedModel(
        f"The checkpoint is quantized ({method}), which is not supported; serve one saved in {', '.join(DTYPES)}."
    )


def _generation(folder: Path) -> Fields:
    path = folder / "generation_config.json"
    return Fields.read(path) if path.exists() else Fields({}, path.name)


def _token_ids(fields: Fields, name: str) -> frozenset[int]:
    value: Any = fields.values.get(name)
    if value is None:
        return frozenset()
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(token, int) and token >= 0 for token in ids):
        raise BrokenModel(f"{name} in {fields.where} must be a token id or a list of them, not {value!r}.")
    return frozenset(ids)


def _dtype(fields: Fields, text: Fields) -> str:
    for source in (fields, text):
        for name in ("dtype", "torch_dtype"):
            if source.has(name):
                return _known_dtype(source.text(name))
    return "float32"


def _known_dtype(name: str) -> str:
    if name not in DTYPES:
        raise UnsupportedModel(f"Weights in {name} are not supported; supported are {', '.join(DTYPES)}.")
    return name
