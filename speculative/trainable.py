"""A DSpark draft as a module that can be trained: many blocks of a sequence in one forward.

Parameters have the names of published drafts. Serving computes the same, one block a row and with a cache; a test holds
the two against each other.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from corymb.models.rope import turn_table
from corymb.models.rope_config import Rope
from corymb.speculative.draft_shape import DraftShape

WEIGHT_SPREAD = 0.02
# An embedding's numbers are far larger than a fresh weight's: with a final norm of 1 the first guesses would be certain
# and wrong, some 70 nats away.
FINAL_NORM = 0.3


@dataclass(frozen=True, slots=True)
class Blocks:
    """B sequences with A anchors each, every one of which begins a block of G drafts."""

    features: Tensor  # [B, S, m * H]
    anchors: Tensor  # int64 [B, A], positions
    previous: Tensor  # int64 [B, A, G], the token before each draft: the anchor, then what the target wrote


@dataclass(frozen=True, slots=True)
class Guesses:
    """What the heads are made of, before any product with the vocabulary: logits = head · hidden + table · inner."""

    hidden: Tensor  # [B, A, G, H]
    inner: Tensor | None  # [B, A, G, rank], for the Markov head's own table; None where hidden holds its part
    confidence: Tensor  # [B, A, G], logits


class RMSNorm(nn.Module):
    """Divides by the root of the mean square, in float32, then weighs."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """The norm of x, over its last dimension."""
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps)


class SelfAttention(nn.Module):
    """Slots look at their context and at their own block."""

    def __init__(self, shape: DraftShape) -> None:
        super().__init__()
        hidden, self.head_dim = shape.hidden_size, shape.head_dim
        queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.q_proj = nn.Linear(hidden, queries, bias=False)
        self.k_proj = nn.Linear(hidden, keys, bias=False)
        self.v_proj = nn.Linear(hidden, keys, bias=False)
        self.o_proj = nn.Linear(queries, hidden, bias=False)
        self.q_norm = RMSNorm(shape.head_dim, shape.norm_eps)
        self.k_norm = RMSNorm(shape.head_dim, shape.norm_eps)

    def forward(self, slots: Tensor, context: Tensor, turns: "Turns", mask: Tensor) -> Tensor:
        """Of slots [B, Q, H] and context [B, S, H]; mask bool [B, 1, Q, S + Q]."""
        both = torch.cat((context.to(slots.dtype), slots), dim=1)
        queries = turned(self.q_norm(self._heads(self.q_proj(slots))), turns.slots)
        keys = turned(self.k_norm(self._heads(self.k_proj(both))), torch.cat((turns.context, turns.slots), dim=1))
        values = self._heads(self.v_proj(both))
        kind, group = values.dtype, queries.shape[2] // keys.shape[2]
        # Repeated by hand: with a mask, no fast kernel shares the heads of a group itself.
        keys, values = (x.repeat_interleave(group, dim=2) for x in (keys, values))
        queries, keys, values = (x.to(kind).transpose(1, 2) for x in (queries, keys, values))
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        result: Tensor = self.o_proj(attended.transpose(1, 2).flatten(2))
        return result

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.head_dim)


class MLP(nn.Module):
    """down(silu(gate(x)) × up(x))."""

    def __init__(self, shape: DraftShape) -> None:
        super().__init__()
        hidden, inner = shape.hidden_size, shape.wishes.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Of x [..., H]."""
        result: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return result


class Layer(nn.Module):
    """One layer of the backbone. Context enters as keys and values alone, without a norm of the layer's own."""

    def __init__(self, shape: DraftShape) -> None:
        super().__init__()
        self.self_attn = SelfAttention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.norm_eps)

    def forward(self, slots: Tensor, context: Tensor, turns: "Turns", mask: Tensor) -> Tensor:
        """See SelfAttention."""
        slots = slots + self.self_attn(self.input_layernorm(slots), context, turns, mask)
        result: Tensor = slots + self.mlp(self.post_attention_layernorm(slots))
        return result


class MarkovHead(nn.Module):
    """What the token before a draft says of it."""

    def __init__(self, shape: DraftShape) -> None:
        super().__init__()
        rank, self.tied = shape.wishes.markov_rank, shape.wishes.markov_tied
        if self.tied:
            self.tied_in = nn.Linear(shape.hidden_size, rank, bias=False)
            self.tied_out = nn.Linear(shape.hidden_size, rank, bias=False)  # its weight is used the other way round
        else:
            self.markov_w1 = nn.Embedding(shape.vocab_size, rank)
            self.markov_w2 = nn.Linear(rank, shape.vocab_size, bias=False)
        gated = shape.wishes.markov == "gated"
        self.gate_proj = nn.Linear(shape.hidden_size + rank, rank) if gated else None

    def entries(self, previous: Tensor, embedded: Tensor) -> Tensor:
        """[..., rank] of the tokens before the drafts, or of their embeddings."""
        result: Tensor = self.tied_in(embedded) if self.tied else self.markov_w1(previous)
        return result

    def inner(self, hidden: Tensor, entries: Tensor) -> Tensor:
        """[..., rank], to be multiplied with the table of all tokens."""
        if self.gate_proj is None:
            return entries
        return torch.sigmoid(self.gate_proj(torch.cat((hidden.to(entries.dtype), entries), dim=-1))) * entries


class ConfidenceHead(nn.Module):
    """The chance that a draft is accepted where all before it are."""

    def __init__(self, shape: DraftShape) -> None:
        super().__init__()
        self.proj = nn.Linear(shape.hidden_size + shape.wishes.markov_rank, 1)


class TrainableDraft(nn.Module):
    """The draft without the target's embedding and head, which it shares and never changes."""

    embedding: Tensor
    table: Tensor

    def __init__(self, shape: DraftShape, embedding: Tensor) -> None:
        """`embedding`: the target's, [V, H]."""
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(shape.num_features, shape.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(shape.hidden_size, shape.norm_eps)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.wishes.num_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.norm_eps)
        self.markov_head = MarkovHead(shape)
        self.confidence_head = ConfidenceHead(shape)
        self.register_buffer("embedding", embedding, persistent=False)
        table = turn_table(Rope(shape.rope_theta), shape.head_dim, shape.context_length, embedding.device)
        self.register_buffer("table", table, persistent=False)

    def forward(self, blocks: Blocks) -> Guesses:
        """Guesses of every block, each as if it stood alone behind its context."""
        shape = self.shape
        num_sequences, num_anchors, num_drafts = blocks.previous.shape
        context = self.hidden_norm(self.fc(blocks.features))
        embedded = F.embedding(blocks.previous, self.embedding)
        slots = self._first(embedded).view(num_sequences, num_anchors * num_drafts, shape.hidden_size)
        turns = self._turns(blocks)
        mask = block_mask(blocks)
        for layer in self.layers:
            slots = layer(slots, context, turns, mask)
        hidden = self.norm(slots).view(num_sequences, num_anchors, num_drafts, shape.hidden_size)
        entries = self.markov_head.entries(blocks.previous, embedded)
        inner = self.markov_head.inner(hidden, entries)
        seen = torch.cat((hidden, entries.to(hidden.dtype)), dim=-1)
        confidence = self.confidence_head.proj(seen)[..., 0]
        if self.markov_head.tied:
            return Guesses(hidden + inner @ self.markov_head.tied_out.weight, None, confidence)
        return Guesses(hidden, inner, confidence)

    def _first(self, embedded: Tensor) -> Tensor:
        """What the slots begin with: the anchor, then masks."""
        masks = self.embedding[self.shape.wishes.mask_token_id].expand_as(embedded[:, :, 1:])
        return torch.cat((embedded[:, :, :1], masks), dim=2).float()

    def _turns(self, blocks: Blocks) -> "Turns":
        num_drafts, length = blocks.previous.shape[2], blocks.features.shape[1]
        of_slots = blocks.anchors[:, :, None] + torch.arange(num_drafts, device=blocks.anchors.device)
        return Turns(self.table[of_slots.flatten(1)], self.table[:length].expand(len(blocks.anchors), -1, -1))


@dataclass(frozen=True, slots=True)
class Turns:
    """Cosines and sines of positions, float32 [B, N, head_dim]."""

    slots: Tensor
    context: Tensor


def turned(heads: Tensor, turns: Tensor) -> Tensor:
    """Turns dimension i of heads [B, N, heads, head_dim] with dimension i + head_dim ÷ 2."""
    cosines, sines = turns[:, :, None].chunk(2, dim=-1)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)


def block_mask(blocks: Blocks) -> Tensor:
    """Bool [B, 1, Q, S + Q]: a slot sees what lies before its anchor, and all slots of its own block."""
    num_sequences, num_anchors, num_drafts = blocks.previous.shape
    length, device = blocks.features.shape[1], blocks.anchors.device
    anchors = blocks.anchors.repeat_interleave(num_drafts, dim=1)
    context = torch.arange(length, device=device) < anchors[:, :, None]
    block = torch.arange(num_anchors, device=device).repeat_interleave(num_drafts)
    own = (block[:, None] == block).expand(num_sequences, -1, -1)
    return torch.cat((context, own), dim=2)[:, None]


@torch.no_grad()
def initialise(draft: TrainableDraft, seed: int) -> None:
    """Sets all weights, the same for the same seed: the backbone small, the Markov head silent, and the fused features
    the mean of those that the target gives."""
    generator = torch.Generator().manual_seed(seed)
    shape = draft.shape
    for name, weight in draft.named_parameters():
        if weight.dim() < 2:
            weight.fill_(0.0 if name.endswith("bias") else 1.0)
            continue
        spread = WEIGHT_SPREAD
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            spread /= math.sqrt(2 * shape.wishes.num_layers)
        weight.copy_(spread * torch.randn(weight.shape, generator=generator))
    draft.norm.weight.fill_(FINAL_NORM)
    count = len(shape.wishes.target_layers)
    draft.fc.weight.add_((torch.eye(shape.hidden_size) / count).repeat(1, count).to(draft.fc.weight))
    head = draft.markov_head
    (head.tied_out if head.tied else head.markov_w2).weight.zero_()
    draft.confidence_head.proj.weight.zero_()
