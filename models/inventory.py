"""Which tensors a decoder's checkpoint must hold, by name and shape. Imports no torch."""

from collections.abc import Iterable
from dataclasses import replace

from corymb.models.config import DecoderConfig, LayerConfig

Shapes = dict[str, tuple[int, ...]]

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"


def expected_tensors(decoder: DecoderConfig) -> Shapes:
    """All tensors of a decoder, in the order in which a model takes them."""
    hidden = decoder.hidden_size
    shapes: Shapes = {EMBEDDING: (decoder.vocab_size, hidden)}
    for index, layer in enumerate(decoder.layers):
        of_layer = _mixer(decoder, layer) | _mlp(decoder, layer) | _norms(decoder)
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in of_layer.items()}
    shapes[FINAL_NORM] = (hidden,)
    if not decoder.tied:
        shapes[HEAD] = (decoder.vocab_size, hidden)
    return shapes


def draft_layers(decoder: DecoderConfig) -> tuple[str, ...]:
    """How tensors' names begin that a checkpoint may hold and that are not read: layers for speculation."""
    first = len(decoder.layers)
    return tuple(f"model.layers.{index}." for index in range(first, first + decoder.num_draft_layers))


def as_stored(decoder: DecoderConfig, names: Iterable[str]) -> DecoderConfig:
    """The decoder as a checkpoint with these tensors holds it: experts of one architecture may lie stacked or apart."""
    if decoder.experts is None or decoder.experts.form == "interleaved":
        return decoder
    stacked = any(name.endswith(".experts.gate_up_proj") for name in names)
    experts = replace(decoder.experts, form="stacked" if stacked else "separate")
    return replace(decoder, experts=experts)


def _mixer(decoder: DecoderConfig, layer: LayerConfig) -> Shapes:
    shapes = _attention(decoder, layer) if layer.attends else {}
    if layer.recurrent is None:
        return shapes
    of_recurrent = layer.recurrent.tensors(decoder.hidden_size)
    return shapes | {f"{layer.recurrent.name}.{name}": shape for name, shape in of_recurrent.items()}


def _attention(decoder: DecoderConfig, layer: LayerConfig) -> Shapes:
    if decoder.latent is not None:
        shapes = decoder.latent.tensors(
            decoder.hidden_size, decoder.num_heads, bias=decoder.qkv_bias, indexed=layer.indexed == "own"
        )
        return {f"self_attn.{name}": shape for name, shape in shapes.items()}
    queries, keys = decoder.num_heads * decoder.head_dim, decoder.num_kv_heads * decoder.head_dim
    with_gates = 2 * queries if decoder.output_gate else queries
    shapes = _linear("self_attn.q_proj", with_gates, decoder.hidden_size, decoder.qkv_bias)
    for name in ("self_attn.k_proj", "self_attn.v_proj"):
        shapes |= _linear(name, keys, decoder.hidden_size, decoder.qkv_bias)
    shapes |= _linear("self_attn.o_proj", decoder.hidden_size, queries, decoder.output_bias)
    if decoder.sinks:
        shapes["self_attn.sinks"] = (decoder.num_heads,)
    if decoder.query_key_norm:
        shapes |= {"self_attn.q_norm.weight": (decoder.head_dim,), "self_attn.k_norm.weight": (decoder.head_dim,)}
    return shapes


def _mlp(decoder: DecoderConfig, layer: LayerConfig) -> Shapes:
    if layer.sparse:
        assert decoder.experts is not None, "a sparse layer of a model without experts"
        return decoder.experts.tensors(decoder.hidden_size)
    hidden, inner, bias = decoder.hidden_size, decoder.intermediate_size, decoder.mlp_bias
    return (
        _linear("mlp.gate_proj", inner, hidden, bias)
        | _linear("mlp.up_proj", inner, hidden, bias)
        | _linear("mlp.down_proj", hidden, inner, bias)
    )


def _norms(decoder: DecoderConfig) -> Shapes:
    names = ["input_layernorm", "post_attention_layernorm"]
    if decoder.family == "gemma":
        names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    return {f"{name}.weight": (decoder.hidden_size,) for name in names}


def _linear(name: str, outputs: int, inputs: int, bias: bool) -> Shapes:
    weight: Shapes = {f"{name}.weight": (outputs, inputs)}
    return weight | {f"{name}.bias": (outputs,)} if bias else weight
