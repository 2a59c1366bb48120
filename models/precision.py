"""In which types a model is kept and computed. Imports no torch."""

import math
from dataclasses import dataclass
from typing import Literal

from corymb.models.config import DecoderConfig
from corymb.models.errors import UnsupportedModel
from corymb.models.inventory import expected_tensors

DType = Literal["float32", "float16", "bfloat16"]
WeightType = Literal["float32", "float16", "bfloat16", "int8"]

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}


@dataclass(frozen=True, slots=True)
class Precision:
    """Two types: one may keep weights smaller than what is computed with them."""

    compute: DType  # of hidden states, keys and values
    weights: WeightType  # of the products' weights

    @property
    def name(self) -> str:
        """For people."""
        return self.compute if self.compute == self.weights else f"{self.weights} weights, {self.compute} sums"

    @property
    def embedding(self) -> DType:
        """Of the embedding, where a head that shares it is kept apart."""
        return "float16" if self.weights == "int8" else self.weights

    def weights_bytes(self, decoder: DecoderConfig, device: Literal["cpu", "cuda"]) -> int:
        """What a loaded model's weights take."""
        num_weights = sum(math.prod(shape) for shape in expected_tensors(decoder).values())
        num_embedding = decoder.vocab_size * decoder.hidden_size
        # A CPU keeps products in layouts of their own, which an embedding cannot share.
        num_products = num_weights if decoder.tied and device == "cpu" else num_weights - num_embedding
        return num_products * ITEM_BYTES[self.weights] + num_embedding * ITEM_BYTES[self.embedding]


def resolve_precision(
    dtype: Literal["auto", "float32", "float16", "bfloat16"],
    quantization: Literal["int8"] | None,
    *,
    device: Literal["cpu", "cuda"],
    saved: str,
) -> Precision:
    """Decides the types from `--dtype`, `--quantization` and what the checkpoint was saved in. Raises UnsupportedModel.

    On a CPU, float16 is for weights alone: products read them half as wide and sum in float32, which is faster at every
    batch size and as exact as the checkpoint, save for one rounding of each weight.
    """
    if quantization is not None and device != "cpu":
        raise UnsupportedModel(f"--quantization {quantization} is for CPUs only; leave it out.")
    if device == "cpu":
        if quantization is not None:
            return _quantized(dtype)
        if dtype == "auto":
            return Precision("float32", "float16")
        return Precision("bfloat16" if dtype == "bfloat16" else "float32", dtype)
    if dtype == "auto":
        return Precision("float16", "float16") if saved == "float16" else Precision("bfloat16", "bfloat16")
    return Precision(dtype, dtype)


def _quantized(dtype: str) -> Precision:
    if dtype not in ("auto", "float32"):
        raise UnsupportedModel(f"--quantization int8 computes in float32; leave --dtype {dtype} out.")
    return Precision("float32", "int8")
