"""Reads the configuration of Falcon-H1: a Mamba 2 mixer beside attention in every layer, and many multipliers."""

import dataclasses

from corymb.models.config import DecoderConfig
from corymb.models.errors import BrokenModel
from corymb.models.fields import Fields
from corymb.models.llama_config import decoder_of
from corymb.models.recurrent_config import Mamba2Config, Multipliers
from corymb.models.recurrent_fields import convolution_width


def read_falcon_h1(fields: Fields) -> DecoderConfig:
    """Falcon-H1."""
    fields = fields.with_defaults(rms_norm_eps=1e-5, num_key_value_heads=fields.whole("num_attention_heads"))
    decoder = decoder_of(fields, default_context=8192)
    biased = fields.flag("attention_bias", False)
    mamba = _mamba(fields, decoder.hidden_size)
    return dataclasses.replace(
        decoder,
        qkv_bias=biased,
        output_bias=biased,
        mlp_bias=fields.flag("mlp_bias", False),
        layers=tuple(dataclasses.replace(layer, recurrent=mamba) for layer in decoder.layers),
        embedding_scale=fields.real("embedding_multiplier", 1.0),
        logit_scale=fields.number("lm_head_multiplier", 1.0),
        multipliers=_multipliers(fields),
    )


def _mamba(fields: Fields, hidden_size: int) -> Mamba2Config:
    size = fields.whole("mamba_d_ssm", fields.whole("mamba_expand", 2) * hidden_size)
    num_heads = fields.whole("mamba_n_heads", 128)
    automatic = fields.values.get("mamba_d_head", "auto") == "auto"
    head_dim = max(1, size // num_heads) if automatic else fields.whole("mamba_d_head")
    num_groups = fields.whole("mamba_n_groups", 1)
    if num_heads * head_dim != size:
        raise BrokenModel(f"{num_heads} heads of {head_dim} in {fields.where} are not the {size} inputs of its mixers.")
    if num_heads % num_groups:
        raise BrokenModel(f"{num_heads} heads in {fields.where} do not divide into mamba_n_groups ({num_groups}).")
    least_step, most_step = fields.reals("time_step_limit", (0.0, float("inf")))
    return Mamba2Config(
        num_heads=num_heads,
        head_dim=head_dim,
        num_groups=num_groups,
        state_size=fields.whole("mamba_d_state", 256),
        width=convolution_width(fields, "mamba_d_conv", 4),
        convolution_bias=fields.flag("mamba_conv_bias", True),
        bias=fields.flag("mamba_proj_bias", False),
        output_bias=fields.flag("projectors_bias", False),
        normed=fields.flag("mamba_rms_norm", False),
        gate_first=not fields.flag("mamba_norm_before_gate", True),
        least_step=least_step,
        most_step=most_step,
    )


def _multipliers(fields: Fields) -> Multipliers:
    mlp_gate, mlp_down = fields.reals("mlp_multipliers", (1.0, 1.0))
    gate, inputs, keys, queries, steps = fields.reals("ssm_multipliers", (1.0,) * 5)
    return Multipliers(
        attention_in=fields.real("attention_in_multiplier", 1.0),
        attention_out=fields.real("attention_out_multiplier", 1.0),
        key=fields.real("key_multiplier", 1.0),
        mamba_in=fields.real("ssm_in_multiplier", 1.0),
        mamba_out=fields.real("ssm_out_multiplier", 1.0),
        mamba_parts=(gate, inputs, keys, queries, steps),
        mlp_gate=mlp_gate,
        mlp_down=mlp_down,
    )
