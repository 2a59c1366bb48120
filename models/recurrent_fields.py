"""Reads which layers of a model carry a state, and what those have in common."""

from corymb.models.config import DecoderConfig, LayerConfig
from corymb.models.errors import BrokenModel, UnsupportedModel
from corymb.models.fields import Fields


def convolution_width(fields: Fields, name: str, default: int) -> int:
    """How many tokens a convolution looks at."""
    width = fields.whole(name, default)
    if width < 2:
        raise UnsupportedModel(f"{fields.where} has convolutions over one token ({name}), which are not supported.")
    return width


def recurrent_layers(
    fields: Fields, decoder: DecoderConfig, kind: str, recurrent: LayerConfig, attends: list[bool]
) -> tuple[LayerConfig, ...]:
    """The decoder's layers, those of the type `kind` being `recurrent`; `layer_types` says which, or else `attends`."""
    if fields.has("layer_types"):
        attends = _read_types(fields, kind, len(decoder.layers))
    return tuple(layer if attending else recurrent for layer, attending in zip(decoder.layers, attends, strict=True))


def _read_types(fields: Fields, kind: str, num_layers: int) -> list[bool]:
    types, known = fields.items("layer_types"), (kind, "full_attention")
    unknown = [one for one in types if one not in known]
    if unknown:
        raise UnsupportedModel(
            f"Layers of type {unknown[0]!r} are not supported in this model; supported are {', '.join(known)}."
        )
    if len(types) != num_layers:
        raise BrokenModel(f"layer_types in {fields.where} names {len(types)} layers, but the model has {num_layers}.")
    return [one == "full_attention" for one in types]
