"""The four ways in which a block draft's config.json is spelled, read into one.

The two conventions that differ without showing are decided here, by dialect, and by nothing else: whether the slot of
the anchor drafts a token, and whether a layer's number means what goes into it or what comes out of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from corymb.models.errors import UnsupportedModel
from corymb.models.fields import Fields

Kind = Literal["DSPARK", "DFLASH"]
ARCHITECTURES: dict[str, Kind] = {
    "Qwen3DSparkModel": "DSPARK",
    "DSparkDraftModel": "DSPARK",
    "DFlashDraftModel": "DFLASH",
}
SPECULATORS: dict[str, Kind] = {"dspark": "DSPARK", "dflash": "DFLASH"}
BUNDLED = "dspark_block_size"


@dataclass(frozen=True, slots=True)
class Spelled:
    """A config by the names of the first published drafts."""

    dialect: str
    kind: Kind
    sizes: Fields  # of the backbone's layers
    keys: Fields  # block_size, target_layer_ids, mask_token_id, markov_*, *confidence*
    anchor_drafts: bool  # slot 0 drafts the token behind the anchor; else only the slots behind it draft
    first_layer: int  # 0: a layer's number names its output; 1: its input, the output of the one before
    bundled: bool = False  # inside the target's own checkpoint, under its names


def read_dialect(folder: Path) -> Spelled:
    """Reads a draft's folder. Raises BrokenModel, UnsupportedModel."""
    fields = Fields.read(folder / "config.json")
    if fields.has("speculators_model_type"):
        return _speculators(fields)
    if fields.has(BUNDLED):
        return _bundled(fields)
    architecture = _architecture(fields)
    return _READERS[architecture](fields, ARCHITECTURES[architecture])


def _architecture(fields: Fields) -> str:
    names = fields.items("architectures") if fields.has("architectures") else []
    if len(names) != 1 or names[0] not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{fields.where} is not that of a block draft: architectures must name one of {', '.join(ARCHITECTURES)}, "
            f"not {names!r}."
        )
    return str(names[0])


def _deepspec(fields: Fields, kind: Kind) -> Spelled:
    """DeepSpec: all keys beside the sizes. Its drafts use every slot."""
    if not fields.flag("sample_from_anchor", True):
        raise UnsupportedModel(
            f"{fields.where} sets sample_from_anchor to false, which no draft of {fields.items('architectures')[0]} is "
            "known to have been trained for."
        )
    return Spelled("DeepSpec", kind, fields, fields, anchor_drafts=True, first_layer=0)


def _dflash(fields: Fields, kind: Kind) -> Spelled:
    """DFlash, and DSpark as SpecForge writes it: keys in an object of their own."""
    inner = fields.inner("dflash_config")
    projector = inner.text("projector_type", "dflash")
    if projector != kind.lower():
        raise UnsupportedModel(
            f"{fields.items('architectures')[0]} in {fields.where} does not go with projector_type {projector!r}."
        )
    if inner.has("attention_mode") and inner.text("attention_mode") not in ("full", "bidirectional"):
        raise UnsupportedModel(
            f"attention_mode {inner.text('attention_mode')!r} is not supported; the slots of a block see each other."
        )
    anchor_drafts = kind == "DSPARK"
    for source in (fields, inner):
        if source.flag("sample_from_anchor", anchor_drafts) != anchor_drafts:
            raise UnsupportedModel(
                f"sample_from_anchor in {source.where} is not what {fields.items('architectures')[0]} was trained with."
            )
    keys = inner.with_defaults(block_size=fields.values.get("block_size"))
    return Spelled("SpecForge", kind, fields, keys, anchor_drafts=anchor_drafts, first_layer=0)


def _bundled(fields: Fields) -> Spelled:
    """A draft inside its target's checkpoint: its sizes are the target's, its layers the target's extra ones."""
    names = {
        "block_size": BUNDLED,
        "target_layer_ids": "dspark_target_layer_ids",
        "mask_token_id": "dspark_noise_token_id",
        "markov_rank": "dspark_markov_rank",
        "markov_head_type": "dspark_markov_head_type",
    }
    found = {name: fields.values.get(spelled) for name, spelled in names.items()}
    missing = [names[name] for name in ("target_layer_ids", "mask_token_id", "markov_rank") if found[name] is None]
    if missing:
        raise UnsupportedModel(f"{fields.where} sets {BUNDLED} without {', '.join(missing)}.")
    sizes = Fields({**fields.values, "num_hidden_layers": fields.whole("num_nextn_predict_layers")}, fields.where)
    keys = Fields(found, fields.where)
    return Spelled("bundled", "DSPARK", sizes, keys, anchor_drafts=True, first_layer=0, bundled=True)


def _speculators(fields: Fields) -> Spelled:
    """speculators: sizes in an object of their own, a vocabulary of its own perhaps. Exports that say nothing of the
    anchor are from before it drafted."""
    kind = fields.text("speculators_model_type")
    if kind not in SPECULATORS:
        raise UnsupportedModel(
            f"speculators_model_type {kind!r} is not supported; supported are {', '.join(SPECULATORS)}."
        )
    keys = {**fields.values, "target_layer_ids": fields.items("aux_hidden_state_layer_ids")}
    return Spelled(
        "speculators",
        SPECULATORS[kind],
        fields.inner("transformer_layer_config"),
        Fields(keys, fields.where),
        anchor_drafts=fields.flag("sample_from_anchor", False),
        first_layer=1,
    )


_READERS: dict[str, Callable[[Fields, Kind], Spelled]] = {
    "Qwen3DSparkModel": _deepspec,
    "DSparkDraftModel": _dflash,
    "DFlashDraftModel": _dflash,
}
