"""What the runner asks of a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from corymb.kernels.attention import Attention, AttentionSpec, KVLayer, RaggedLayout
from corymb.models.features import Capture
from corymb.models.records import Fold, Replay
from corymb.models.states import StateSpec
from corymb.models.vocabulary import Vocabulary
from corymb.scheduler.plan import Int32


class Prompts(Protocol):
    """The prompts of the requests that hold rows now."""

    def __getitem__(self, row: int) -> Int32:
        """The prompt's token ids, on the host."""
        ...


@dataclass(frozen=True, slots=True)
class Batch:
    """One step as a model sees it: T new tokens of all rows, one after another."""

    token_ids: Tensor  # int64 [T]
    positions: Tensor  # int64 [T]
    layout: RaggedLayout
    attention: Attention
    kv: Sequence[KVLayer]  # in the order of `Model.attention_specs`
    prompts: Prompts  # for models that look beyond their caches (the test model `tape`)
    wanted: Tensor | None = None  # int64 [N], the tokens whose hidden states `forward` returns; None for all
    states: Sequence[Tensor] = ()  # in the order of `Model.state_specs`, each [num_state_slots, *shape]
    capture: Capture | None = None  # of a decoder
    replay: Replay | None = None  # of a step whose tokens may be taken back, where the model has states

    def fold(self, record: int, parts: Sequence[Tensor], states: Sequence[Tensor], fold: Fold) -> Tensor:
        """Takes the step's tokens through the states of the layer whose `record` this is, and returns what they give.
        All that `fold` knows of the tokens is in the parts, [T, …]."""
        if self.replay is not None:
            self.replay.advance(record, parts, states, fold)
        return fold(parts, states, self.layout)


@runtime_checkable
class ScoringModel(Protocol):
    """A model whose logits come in two steps, so that a greedy choice may do without the second."""

    @property
    def vocabulary(self) -> Vocabulary:
        """How its scores are spread over ranks."""
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """Returns [N, V] of hidden states [N, hidden_size], in the order of the logits: this rank's part of them."""
        ...

    def finish(self, scores: Tensor) -> Tensor:
        """Returns the logits [N, vocab_size], float32, of what `head` gave on all ranks; may change that."""
        ...


@runtime_checkable
class SharingModel(Protocol):
    """A model whose embedding and head a draft uses, too."""

    def embed(self, token_ids: Tensor) -> Tensor:
        """Returns what the first layer is given of token ids [T], [T, hidden_size]."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """See Model."""
        ...


class Model(Protocol):
    """A loaded model. Forward must depend on tokens, positions and what the pools hold, and on nothing else."""

    vocab_size: int

    @property
    def attention_specs(self) -> Sequence[AttentionSpec]:
        """One a layer with attention; each gets a `KVLayer`: in the sliding pool if its spec has a window."""
        ...

    @property
    def state_specs(self) -> Sequence[StateSpec]:
        """What each sequence carries from token to token, beside keys and values: any number of tensors a layer. In
        `forward` the states of row r lie at layout.state_slots[r] of `Batch.states`: as the row's last step left them,
        zero in a new sequence. It leaves there the states after the row's last token."""
        ...

    @property
    def record_specs(self) -> Sequence[StateSpec]:
        """What `Batch.fold` records of one token, by its number `record`: one a layer that carries states."""
        ...

    def forward(self, batch: Batch) -> Tensor:
        """Returns the last hidden states [N, hidden_size] of the wanted tokens, before the head."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns float32 [N, vocab_size] of hidden states [N, hidden_size]."""
        ...
