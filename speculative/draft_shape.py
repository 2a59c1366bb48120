"""The sizes of a draft that is to be trained, and what its published config.json says of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from corymb.models.config import DecoderConfig
from corymb.models.errors import UnsupportedModel

Markov = Literal["vanilla", "gated"]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What somebody who trains a draft may choose of its shape."""

    num_drafts: int = 7
    num_layers: int = 3
    intermediate_size: int = 704
    target_layers: tuple[int, ...] = ()  # (): three, spread from the second to the third from last
    markov: Markov = "gated"
    markov_rank: int = 256
    markov_tied: bool = True  # its tables are factored through the target's embedding: no file holds V × rank numbers
    mask_token_id: int = 0


@dataclass(frozen=True, slots=True)
class DraftShape:
    """Everything of a draft but its numbers."""

    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    context_length: int
    num_target_layers: int
    wishes: Wishes

    @property
    def num_features(self) -> int:
        """Numbers of one token that the target gives."""
        return len(self.wishes.target_layers) * self.hidden_size

    def published(self, num_anchors: int) -> dict[str, Any]:
        """Its config.json, as the first published drafts have it; `markov_tied` alone is ours."""
        wishes = self.wishes
        config: dict[str, Any] = {
            "architectures": ["Qwen3DSparkModel"],
            "model_type": "qwen3",
            "hidden_size": self.hidden_size,
            "intermediate_size": wishes.intermediate_size,
            "num_hidden_layers": wishes.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "rms_norm_eps": self.norm_eps,
            "rope_theta": self.rope_theta,
            "hidden_act": "silu",
            "attention_bias": False,
            "max_position_embeddings": self.context_length,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "num_target_layers": self.num_target_layers,
            "block_size": wishes.num_drafts,
            "target_layer_ids": list(wishes.target_layers),
            "mask_token_id": wishes.mask_token_id,
            "num_anchors": num_anchors,
            "enable_confidence_head": True,
            "confidence_head_with_markov": True,
            "markov_rank": wishes.markov_rank,
            "markov_head_type": wishes.markov,
            "layer_types": ["full_attention"] * wishes.num_layers,
            "sample_from_anchor": True,
        }
        return config | ({"markov_tied": True} if wishes.markov_tied else {})


def shape_for(decoder: DecoderConfig, architecture: str, wishes: Wishes) -> DraftShape:
    """The shape of a draft for a target. Raises UnsupportedModel, in one sentence, where none can be trained."""
    _check_target(decoder, architecture)
    count = len(decoder.layers)
    layers = wishes.target_layers or spread_layers(count)
    _check_wishes(decoder, wishes, layers)
    rope = decoder.layers[0].rope
    assert rope is not None
    return DraftShape(
        vocab_size=decoder.vocab_size,
        hidden_size=decoder.hidden_size,
        num_heads=decoder.num_heads,
        num_kv_heads=decoder.num_kv_heads,
        head_dim=decoder.head_dim,
        norm_eps=decoder.norm_eps,
        rope_theta=rope.theta,
        context_length=decoder.context_length,
        num_target_layers=count,
        wishes=replace(wishes, target_layers=layers),
    )


def spread_layers(num_layers: int) -> tuple[int, ...]:
    """Three layers from the second to the third from last; never the last, whose output is what is to be guessed."""
    last = max(0, num_layers - 3)
    first = min(1, last)
    return tuple(sorted({first, (first + last) // 2, last}))


def _check_target(decoder: DecoderConfig, architecture: str) -> None:
    plain = decoder.embedding_scale == 1.0 and decoder.logit_scale == 1.0 and decoder.logit_soft_cap is None
    if not plain or decoder.multipliers is not None:
        raise UnsupportedModel(
            f"{architecture} scales embeddings or logits, and the trainer makes drafts for models that do not."
        )
    if any(not layer.attends or layer.rope is None for layer in decoder.layers) or decoder.latent is not None:
        raise UnsupportedModel(f"{architecture} has layers without plain attention, which a draft cannot copy.")


def _check_wishes(decoder: DecoderConfig, wishes: Wishes, layers: Sequence[int]) -> None:
    count = len(decoder.layers)
    if list(layers) != sorted(set(layers)) or not 0 <= layers[0] <= layers[-1] < count - 1:
        raise UnsupportedModel(
            f"--target-layers {' '.join(map(str, layers))} must rise, and lie between 0 and {count - 2}: "
            "the last layer's output is what a draft guesses."
        )
    if wishes.markov_tied and not decoder.tied:
        raise UnsupportedModel("The target's head is not its embedding; a tied Markov head needs --no-markov-tied.")
    if not 0 <= wishes.mask_token_id < decoder.vocab_size:
        raise UnsupportedModel(f"--mask-token-id {wishes.mask_token_id} is no token of the target.")
