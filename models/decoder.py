"""A decoder-only transformer: an embedding, layers, a norm and a head."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from corymb.kernels.attention import AttentionSpec
from corymb.models.inventory import EMBEDDING, FINAL_NORM, HEAD
from corymb.models.layers import Parts, attention_specs
from corymb.models.mixers import record_specs, state_specs
from corymb.models.model import Batch
from corymb.models.rope import turn_table
from corymb.models.rope_config import Rope
from corymb.models.states import StateSpec
from corymb.models.vocabulary import Vocabulary


class Layer(Protocol):
    """One layer of a decoder."""

    def attend(self, delta: Tensor | None, residual: Tensor, batch: Batch, turns: Tensor | None) -> Tensor:
        """Adds delta, the previous layer's part, to residual in place and returns what the tokens attended to."""
        ...

    def complete(self, attended: Tensor, residual: Tensor) -> Tensor | None:
        """Does the rest, token by token: may add to residual in place, and returns this layer's part; None for a part
        that is in the residual already."""
        ...


class Decoder:
    """A Model: see models.model. Of several ranks each has the embeddings and the head of a part of the vocabulary."""

    def __init__(self, parts: Parts, layers: Sequence[Layer], *, sums: bool = False) -> None:
        """`sums`: what the last layer returns is still to be summed over the ranks."""
        decoder = parts.decoder
        self.vocab_size = parts.vocab_size
        self.vocabulary = Vocabulary(parts.vocab_size, decoder.vocab_size, parts.group)
        self._specs = attention_specs(decoder)
        self._state_specs = state_specs(decoder)
        self._record_specs = record_specs(decoder)
        self._layers = layers
        embedding = self.vocabulary.table(parts.weights.take(EMBEDDING))
        self._dtype = parts.storage.compute
        # On a CPU the checkpoint's tensors are views of its file.
        self._embedding = embedding.to(parts.storage.embedding, copy=embedding.device.type == "cpu")
        self._norm = parts.norm(FINAL_NORM.removesuffix(".weight"), sums=sums)
        self._head = parts.storage.makers.linear(
            embedding[: decoder.vocab_size] if decoder.tied else parts.weights.take(HEAD), None
        )
        # Rounded as the checkpoint's training did: in bfloat16, √3072 = 55.43 becomes 55.5.
        self._embedding_scale = torch.tensor(decoder.embedding_scale, dtype=self._dtype).item()
        self._soft_cap = decoder.logit_soft_cap
        self._logit_scale = decoder.logit_scale
        self._ropes = [layer.rope for layer in decoder.layers]
        self._tables = {
            rope: turn_table(rope, decoder.head_dim, decoder.context_length, embedding.device)
            for rope in set(self._ropes)
            if rope is not None
        }

    @property
    def attention_specs(self) -> Sequence[AttentionSpec]:
        """One a layer that has attention."""
        return self._specs

    @property
    def state_specs(self) -> Sequence[StateSpec]:
        """Those of layers that carry a state."""
        return self._state_specs

    @property
    def record_specs(self) -> Sequence[StateSpec]:
        """Those of layers that carry a state."""
        return self._record_specs

    @torch.inference_mode()
    def embed(self, token_ids: Tensor) -> Tensor:
        """Returns what the first layer is given of token ids [T], [T, hidden_size]."""
        embedded = self.vocabulary.embed(token_ids, self._embedding, self._dtype)
        return embedded if self._embedding_scale == 1.0 else embedded.mul_(self._embedding_scale)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Tensor:
        """Returns the last hidden states [N, hidden_size] of the wanted tokens, before the head."""
        delta: Tensor | None = None
        residual = self.embed(batch.token_ids)
        turns: dict[Rope | None, Tensor] = {
            rope: table.index_select(0, batch.positions) for rope, table in self._tables.items()
        }
        for index, (layer, rope) in enumerate(zip(self._layers, self._ropes, strict=True)):
            attended = layer.attend(delta, residual, batch, turns.get(rope))
            if batch.capture is not None:
                batch.capture.take(index - 1, residual)  # whole now, over all ranks too
            if layer is self._layers[-1] and batch.wanted is not None:
                # Of a prompt only the last token goes on: nothing looks at the others any more.
                attended, residual = attended[batch.wanted], residual[batch.wanted]
                if not len(residual):
                    return residual
            delta = layer.complete(attended, residual)
        return self._norm.after_add(delta, residual)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Returns float32 [N, vocab_size] of hidden states [N, hidden_size]."""
        return self.finish(self.head(hidden))

    @torch.inference_mode()
    def head(self, hidden: Tensor) -> Tensor:
        """See ScoringModel."""
        return self.vocabulary.own(self._head(hidden))

    @torch.inference_mode()
    def finish(self, scores: Tensor) -> Tensor:
        """See ScoringModel."""
        logits = self.vocabulary.join(scores).float()
        if self._logit_scale != 1.0:
            logits = logits.mul_(self._logit_scale)
        if self._soft_cap is None:
            return logits
        return logits.div_(self._soft_cap).tanh_().mul_(self._soft_cap)
