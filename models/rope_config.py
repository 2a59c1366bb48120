"""What a layer's rotary position embedding is, read from either of the spellings that checkpoints use."""

from dataclasses import dataclass

from corymb.models.errors import UnsupportedModel
from corymb.models.fields import Fields


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions are divided by a factor."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Long wavelengths are divided by a factor, short ones kept, and those between blended."""

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Frequencies are interpolated by how often they turn within the original context."""

    factor: float
    original_context: int
    beta_fast: float
    beta_slow: float
    truncate: bool
    attention_factor: float | None  # multiplies cos and sin; None derives it from the factor
    mscale: float | None
    mscale_all_dim: float | None


Scaling = LinearScaling | Llama3Scaling | YarnScaling

KINDS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotates n dimensions of a head, all or the first ones: dimension i turns with dimension i + n ÷ 2."""

    theta: float
    scaling: Scaling | None = None
    rotated: float = 1.0  # share of the head

    def num_rotated(self, head_dim: int) -> int:
        """n."""
        return int(head_dim * self.rotated)


def read_rope(fields: Fields, default_theta: float = 10_000.0, default_rotated: float = 1.0) -> Rope:
    """The rope of a model whose layers share one. Raises UnsupportedModel."""
    rope = Rope(
        fields.number("rope_theta", default_theta), rotated=fields.number("partial_rotary_factor", default_rotated)
    )
    for name in ("rope_parameters", "rope_scaling"):
        if fields.has(name):
            return _rope(fields.inner(name), rope, fields)
    return rope


def read_rope_of(fields: Fields, layer_type: str, theta_name: str, default_theta: float) -> Rope:
    """The rope of one type of layer, where a model has several types. Only full attention is ever scaled in the old
    spelling."""
    rope = Rope(fields.number(theta_name, default_theta))
    if fields.has("rope_parameters"):
        parameters = fields.inner("rope_parameters")
        return _rope(parameters.inner(layer_type), rope, fields) if parameters.has(layer_type) else rope
    if fields.has("rope_scaling") and layer_type == "full_attention":
        return _rope(fields.inner("rope_scaling"), rope, fields)
    return rope


def extended_context(rope: Rope, context_length: int, fields: Fields) -> int:
    """Tokens a model can take. A config that names its original context already states the extended one."""
    if not isinstance(rope.scaling, LinearScaling | YarnScaling):
        return context_length
    scaling = fields.inner("rope_parameters" if fields.has("rope_parameters") else "rope_scaling")
    if scaling.has("original_max_position_embeddings") or scaling.has("full_attention"):
        return context_length
    return int(context_length * rope.scaling.factor)


def _rope(parameters: Fields, default: Rope, config: Fields) -> Rope:
    theta = parameters.number("rope_theta", default.theta)
    rotated = parameters.number("partial_rotary_factor", default.rotated)
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    if kind == "default":
        return Rope(theta, None, rotated)
    if kind == "linear":
        return Rope(theta, LinearScaling(parameters.number("factor")), rotated)
    if kind == "llama3":
        return Rope(theta, _llama3(parameters, config), rotated)
    if kind == "yarn":
        return Rope(theta, _yarn(parameters, config), rotated)
    raise UnsupportedModel(f"Rope scaling {kind!r} is not supported; supported are {', '.join(KINDS)}.")


def _llama3(parameters: Fields, config: Fields) -> Llama3Scaling:
    return Llama3Scaling(
        factor=parameters.number("factor"),
        low_frequency_factor=parameters.number("low_freq_factor"),
        high_frequency_factor=parameters.number("high_freq_factor"),
        original_context=_original_context(parameters, config),
    )


def _yarn(parameters: Fields, config: Fields) -> YarnScaling:
    return YarnScaling(
        factor=parameters.number("factor"),
        original_context=_original_context(parameters, config),
        beta_fast=parameters.number("beta_fast", 32.0),
        beta_slow=parameters.number("beta_slow", 1.0),
        truncate=parameters.flag("truncate", True),
        attention_factor=_optional(parameters, "attention_factor"),
        mscale=_optional(parameters, "mscale"),
        mscale_all_dim=_optional(parameters, "mscale_all_dim"),
    )


def _original_context(parameters: Fields, config: Fields) -> int:
    name = "original_max_position_embeddings"
    if parameters.has(name):
        return parameters.whole(name)
    return config.whole("max_position_embeddings")


def _optional(parameters: Fields, name: str) -> float | None:
    return parameters.number(name) if parameters.has(name) else None
