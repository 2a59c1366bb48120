"""What a block draft is, and whether it fits its target: all that can be wrong is found before weights are read."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from corymb.models.config import DecoderConfig, ModelConfig
from corymb.models.errors import BrokenModel, UnsupportedModel
from corymb.models.fields import Fields
from corymb.models.llama_config import decoder_of, sliding_layers, with_windows
from corymb.speculative.draft_dialects import Kind, Spelled, read_dialect

MarkovKind = Literal["vanilla", "gated", "rnn"]
_DEFAULT_RANK = 256


@dataclass(frozen=True, slots=True)
class MarkovConfig:
    """The head that tells a draft what the token before it says."""

    kind: MarkovKind
    rank: int
    tied: bool  # its tables are factored through the target's embedding


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """A draft that fits its target."""

    kind: Kind
    dialect: str
    backbone: DecoderConfig  # its layers alone are used: embedding and head are the target's
    num_slots: int  # of a block, as it was trained
    anchor_drafts: bool
    layers: tuple[int, ...]  # of the target, by the number of the layer whose output it is; -1 for the embedding
    mask_token_id: int
    target_vocab_size: int
    markov: MarkovConfig | None
    confident: bool  # it has a confidence head
    confident_of_tokens: bool  # which sees the token before each draft
    causal_windows: bool  # slots of sliding layers see only those before them
    bundled: bool

    @property
    def first_slot(self) -> int:
        """The one that drafts the token behind the anchor."""
        return 0 if self.anchor_drafts else 1

    @property
    def num_drafts(self) -> int:
        """Drafts of a block."""
        return self.num_slots - self.first_slot

    @property
    def vocab_size(self) -> int:
        """Tokens that it can draft."""
        return self.backbone.vocab_size

    @property
    def reduced(self) -> bool:
        """Whether it drafts only some of the target's tokens, with a head of its own."""
        return self.vocab_size != self.target_vocab_size


def read_draft_config(folder: Path, kind: Kind, target: ModelConfig) -> DraftConfig:
    """Reads a draft's folder for a target. Raises BrokenModel, UnsupportedModel."""
    spelled = read_dialect(folder)
    if spelled.kind != kind:
        raise UnsupportedModel(
            f"{folder} holds a {spelled.kind} draft; serve it with --speculative-algorithm {spelled.kind}."
        )
    decoder = _check_target(target)
    backbone = _backbone(spelled, decoder)
    keys = spelled.keys
    config = DraftConfig(
        kind=kind,
        dialect=spelled.dialect,
        backbone=backbone,
        num_slots=keys.whole("block_size"),
        anchor_drafts=spelled.anchor_drafts,
        layers=_layers(spelled, decoder),
        mask_token_id=_mask(keys, decoder),
        target_vocab_size=decoder.vocab_size,
        markov=_markov(keys, decoder) if kind == "DSPARK" else None,
        confident=kind == "DSPARK" and keys.flag("enable_confidence_head", True),
        confident_of_tokens=keys.flag("confidence_head_with_markov", True),
        causal_windows=not keys.flag("sliding_window_non_causal", False),
        bundled=spelled.bundled,
    )
    if config.num_drafts < 1:
        raise BrokenModel(
            f"block_size {config.num_slots} in {keys.where} counts the anchor and leaves nothing to draft."
        )
    return config


def check_num_drafts(config: DraftConfig, wished: int | None) -> int:
    """How many drafts a step makes of a row. Raises UnsupportedModel for more than the draft was trained for."""
    if wished is None:
        return config.num_drafts
    if wished > config.num_drafts:
        raise UnsupportedModel(
            f"The draft was trained for {config.num_drafts} tokens and cannot draft {wished}; give "
            f"--speculative-num-draft-tokens {config.num_drafts + 1} or less."
        )
    return wished


def _check_target(target: ModelConfig) -> DecoderConfig:
    decoder = target.decoder
    if decoder is None:
        raise UnsupportedModel(f"{target.architecture} has no hidden states for a draft to look at.")
    if decoder.embedding_scale != 1.0 or decoder.logit_soft_cap is not None:
        raise UnsupportedModel(
            f"{target.architecture} scales its embeddings or bounds its logits, and drafts do not say whether they "
            "were trained with that; leave --speculative-algorithm out."
        )
    return decoder


def _backbone(spelled: Spelled, target: DecoderConfig) -> DecoderConfig:
    sizes, where = spelled.sizes, spelled.sizes.where
    for name in ("mlp_bias", "use_mrope"):
        if sizes.flag(name, False):
            raise UnsupportedModel(f"{where} sets {name}, which no draft is known to be built with.")
    if sizes.has("hc_mult"):
        raise UnsupportedModel(f"{where} is that of a draft with hyper-connections, which are not supported.")
    biased = sizes.flag("attention_bias", False)
    reduced = spelled.keys.whole("draft_vocab_size", target.vocab_size)
    decoder = decoder_of(sizes, default_context=target.context_length)
    if decoder.hidden_size != target.hidden_size:
        raise BrokenModel(
            f"The draft has hidden states of {decoder.hidden_size} numbers and its target of {target.hidden_size}; it "
            "was trained for another model."
        )
    if decoder.vocab_size != target.vocab_size and not spelled.keys.has("draft_vocab_size"):
        raise _other_vocabulary(decoder.vocab_size, target)
    if reduced > target.vocab_size:
        raise _other_vocabulary(reduced, target)
    if any(layer.rope is None or layer.rope.rotated != 1.0 for layer in decoder.layers):
        raise UnsupportedModel(f"{where} turns only a part of each head, which no draft is known to be built with.")
    _check_count(spelled.keys, target)
    decoder = replace(decoder, qkv_bias=biased, output_bias=biased, query_key_norm=True, vocab_size=reduced)
    return with_windows(decoder, sizes, sliding_layers(sizes, len(decoder.layers), [False] * len(decoder.layers)))


def _other_vocabulary(size: int, target: DecoderConfig) -> BrokenModel:
    return BrokenModel(
        f"The draft has {size} tokens and its target {target.vocab_size}; it was trained for another vocabulary."
    )


def _check_count(keys: Fields, target: DecoderConfig) -> None:
    count = len(target.layers)
    if keys.has("num_target_layers") and keys.whole("num_target_layers") != count:
        raise BrokenModel(
            f"The draft was trained for a target of {keys.whole('num_target_layers')} layers, and this one has {count}."
        )


def _layers(spelled: Spelled, target: DecoderConfig) -> tuple[int, ...]:
    keys, count = spelled.keys, len(target.layers)
    if not keys.has("target_layer_ids"):
        return _spread(spelled.sizes.whole("num_hidden_layers"), count)
    named = keys.items("target_layer_ids")
    whole = all(isinstance(one, int) and not isinstance(one, bool) for one in named)
    layers = tuple(one - spelled.first_layer for one in named) if whole else ()
    # The last layer is left out: what it puts out is known to some only after the final norm.
    if not layers or list(layers) != sorted(set(layers)) or not -1 <= layers[0] <= layers[-1] < count - 1:
        raise BrokenModel(
            f"The layers that the draft looks at must rise and lie between {spelled.first_layer - 1} and "
            f"{count - 2 + spelled.first_layer} of the target's {count}; {keys.where} names {named!r}."
        )
    return layers


def _spread(num_draft_layers: int, count: int) -> tuple[int, ...]:
    """Where a config names none: as many as the draft has layers, from the second to the third from last."""
    if num_draft_layers == 1:
        return (count // 2,)
    steps = num_draft_layers - 1
    layers = [round(1 + index * (count - 4) / steps) for index in range(num_draft_layers)]
    if count < 4 or len(set(layers)) < len(layers):
        raise BrokenModel(f"The draft names no target_layer_ids, and {count} layers are too few to spread them over.")
    return tuple(layers)


def _mask(keys: Fields, target: DecoderConfig) -> int:
    value = keys.values.get("mask_token_id")
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < target.vocab_size:
        raise BrokenModel(
            f"mask_token_id in {keys.where} must be one of the target's {target.vocab_size} tokens, not {value!r}."
        )
    return value


def _markov(keys: Fields, target: DecoderConfig) -> MarkovConfig:
    kind = keys.text("markov_head_type", "vanilla")
    known = {name: name for name in get_args(MarkovKind)}
    if kind not in known:
        raise UnsupportedModel(f"markov_head_type {kind!r} is not supported; supported are {', '.join(known)}.")
    tied = keys.flag("markov_tied", False)
    if tied and not target.tied:
        raise UnsupportedModel(
            "The draft's Markov head is made of an embedding that is also the target's head; this target's is not."
        )
    return MarkovConfig(known[kind], keys.whole("markov_rank", _DEFAULT_RANK), tied)
