"""The parts that decoders are built from."""

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from corymb.kernels.attention import AttentionSpec, HeadChanges, HeadNorms, IndexSpec, JoinedAttention
from corymb.kernels.operations import Activation, Norm, Operations
from corymb.kernels.recurrence import Recurrence
from corymb.models.config import DecoderConfig, LayerConfig
from corymb.models.group import ALONE, Group
from corymb.models.head_order import join_heads, order_of
from corymb.models.latent_config import LatentConfig
from corymb.models.linear import FusedLinear, Linear
from corymb.models.makers import Makers
from corymb.models.model import Batch
from corymb.models.weights import Weights


@dataclass(frozen=True, slots=True)
class Storage:
    """How a model's weights are kept."""

    compute: torch.dtype  # of hidden states
    embedding: torch.dtype
    makers: Makers


@dataclass(frozen=True, slots=True)
class Parts:
    """Makes layers out of named tensors: of a model that several ranks share, one rank's part."""

    decoder: DecoderConfig  # sizes of this rank's part
    weights: Weights
    operations: Operations
    recurrence: Recurrence
    storage: Storage
    group: Group
    vocab_size: int  # of the whole model

    def linear(self, *names: str, bias: bool) -> Linear:
        """One product for the weights of these names, their outputs one after another."""
        weight = self._joined([f"{name}.weight" for name in names])
        return self.storage.makers.linear(weight, self._joined([f"{name}.bias" for name in names]) if bias else None)

    def exact_linear(self, name: str, *, bias: bool) -> Linear:
        """A product in float32."""
        weight, biases = self.weights.take(f"{name}.weight"), self.weights.take(f"{name}.bias") if bias else None
        return self.storage.makers.exact(weight.float(), None if biases is None else biases.float())

    def norm(
        self, name: str, order: Tensor | None = None, *, eps: float | None = None, sums: bool = False
    ) -> "RMSNorm":
        """A norm over hidden states, or over heads whose dimensions stand in `order`. `eps`: None for the model's.
        `sums`: see RMSNorm."""
        weight = self.weights.take(f"{name}.weight").float() + self.decoder.norm_offset
        weight = weight if order is None else weight[order.to(weight.device)]
        return RMSNorm(weight, eps or self.decoder.norm_eps, self.operations, self.group if sums else ALONE)

    def _joined(self, names: list[str]) -> Tensor:
        tensors = [self.weights.take(name) for name in names]
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


class RMSNorm:
    """Divides by the root of the mean square, then weighs."""

    def __init__(self, weight: Tensor, eps: float, operations: Operations, group: Group) -> None:
        """`group`: the ranks over which what `after_add` adds must be summed first."""
        self.norm = Norm(weight, eps)
        self._operations = operations
        self._group = group

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the norm of x."""
        return self._operations.rms_norm(x, self.norm.weight, self.norm.eps)

    def after_add(self, x: Tensor | None, residual: Tensor) -> Tensor:
        """Adds x, if there is any, to residual in place and returns the norm of the sum."""
        if x is None:
            return self(residual)
        return self._group.add_rms_norm(x, residual, self.norm, self._operations)


def multiply_normed(
    product: Linear, delta: Tensor | None, residual: Tensor, norm: RMSNorm, *, gate: Activation | None = None
) -> Tensor:
    """Adds delta, if there is any, to residual in place and returns the product with the norm of the sum."""
    if not isinstance(product, FusedLinear):
        return product(norm.after_add(delta, residual))
    if delta is None and product.fuses(len(residual), "norm"):
        return product.fused(residual, norm=norm.norm, gate=gate)
    normed = norm.after_add(delta, residual)
    return product(normed) if gate is None else product.fused(normed, gate=gate)


def add_product(product: Linear, x: Tensor, residual: Tensor, group: Group) -> Tensor | None:
    """Returns the product with x, whose sum over the group is still to be added to residual; None where it is added
    already."""
    if group.size == 1 and isinstance(product, FusedLinear) and product.fuses(len(x), "addition"):
        product.fused(x, add_to=residual)
        return None
    return product(x)


class LayerMLP(Protocol):
    """What a layer does after attention, token by token."""

    def __call__(self, x: Tensor) -> Tensor:
        """Returns [T, hidden_size] of [T, hidden_size]."""
        ...

    def after(self, delta: Tensor | None, residual: Tensor, norm: RMSNorm) -> Tensor | None:
        """Adds delta, if there is any, to residual and returns what it makes of the norm of that; None if that is added
        already too."""
        ...


class MLP:
    """down(activation(gate(x)) × up(x))."""

    def __init__(self, parts: Parts, name: str) -> None:
        bias = parts.decoder.mlp_bias
        self._group = parts.group
        self._gate_up = parts.linear(f"{name}.gate_proj", f"{name}.up_proj", bias=bias)
        self._down = parts.linear(f"{name}.down_proj", bias=bias)
        activations = {"silu": parts.operations.silu_mul, "gelu_tanh": parts.operations.gelu_tanh_mul}
        self._activation = parts.decoder.activation
        self._activate = activations[self._activation]

    def __call__(self, x: Tensor) -> Tensor:
        """Returns [T, hidden_size] of [T, hidden_size]."""
        return self._group.all_reduce(self.part(x))

    def part(self, x: Tensor) -> Tensor:
        """The same, still to be summed over the ranks."""
        return self._down(self._activate(self._gate_up(x)))

    def after(self, delta: Tensor | None, residual: Tensor, norm: RMSNorm) -> Tensor | None:
        """Adds delta to residual and returns the MLP of the norm of that, still to be summed over the ranks; None if
        that is added already too."""
        product = self._gate_up
        if isinstance(product, FusedLinear) and product.fuses(len(residual), "gate"):
            inner = multiply_normed(product, delta, residual, norm, gate=self._activation)
        else:
            inner = self._activate(multiply_normed(product, delta, residual, norm))
        return add_product(self._down, inner, residual, self._group)


class SelfAttention:
    """Attention between a token and those before it."""

    def __init__(self, parts: Parts, name: str, index: int) -> None:
        decoder, layer = parts.decoder, parts.decoder.layers[index]
        self._group = parts.group
        self._cache = decoder.num_attending(index)
        self._spec = attention_spec(decoder, layer)
        if decoder.sinks:
            self._spec = replace(self._spec, sinks=parts.weights.take(f"{name}.sinks").float())
        self._operations = parts.operations
        order = order_of(layer.rope, decoder.head_dim)

        def joined(kind: str) -> Tensor:
            queries, keys, values = (parts.weights.take(f"{name}.{part}_proj.{kind}") for part in "qkv")
            return join_heads(queries, keys, values, decoder, order)

        self._product = parts.storage.makers.linear(joined("weight"), joined("bias") if decoder.qkv_bias else None)
        self._output = parts.linear(f"{name}.o_proj", bias=decoder.output_bias)
        normed = decoder.query_key_norm
        self._query_norm = parts.norm(f"{name}.q_norm", order) if normed else None
        self._key_norm = parts.norm(f"{name}.k_norm", order) if normed else None
        self._norms: HeadNorms | None = None
        if self._query_norm is not None and self._key_norm is not None:
            self._norms = HeadNorms(self._query_norm.norm.weight, self._key_norm.norm.weight, decoder.norm_eps)

    def attend(
        self, delta: Tensor | None, residual: Tensor, norm: RMSNorm, batch: Batch, turns: Tensor | None
    ) -> Tensor:
        """Adds delta to residual in place and attends with the norm of that; returns [T, num_heads × head_dim].

        `turns`: see Operations.rope; None for no positions.
        """
        return self._attend(multiply_normed(self._product, delta, residual, norm), batch, turns)

    def attend_normed(self, x: Tensor, batch: Batch, turns: Tensor | None) -> Tensor:
        """Attends with x [T, hidden_size], which is normed already; returns [T, num_heads × head_dim]."""
        return self._attend(self._product(x), batch, turns)

    def _attend(self, projected: Tensor, batch: Batch, turns: Tensor | None) -> Tensor:
        spec = self._spec
        size = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
        attended = self._look_back(projected[:, :size].view(len(projected), -1, spec.head_dim), batch, turns)
        gates = projected[:, size:]
        return attended * torch.sigmoid(gates) if gates.shape[1] else attended

    def _look_back(self, heads: Tensor, batch: Batch, turns: Tensor | None) -> Tensor:
        """`heads`: queries, keys and values as they were projected."""
        spec, cache, num_tokens = self._spec, batch.kv[self._cache], len(heads)
        num_turned = spec.num_heads + spec.num_kv_heads
        if isinstance(batch.attention, JoinedAttention):
            attended = batch.attention.run_joined(heads, HeadChanges(turns, self._norms), spec, cache)
            return attended.view(num_tokens, -1)
        turned = self._normed(heads[:, :num_turned])
        if turns is not None:
            self._operations.rope(turned, turns)
        queries, keys = torch.split(turned, [spec.num_heads, spec.num_kv_heads], dim=1)
        attended = batch.attention.run(queries, keys, heads[:, num_turned:], spec, cache)
        return attended.reshape(num_tokens, spec.num_heads * spec.head_dim)

    def output(self, attended: Tensor) -> Tensor:
        """Returns [N, hidden_size] of what N tokens attended to."""
        return self._group.all_reduce(self._output(attended))

    def add_to(self, residual: Tensor, attended: Tensor) -> Tensor | None:
        """The output, still to be summed over the ranks and added to residual; None where it is added already."""
        return add_product(self._output, attended, residual, self._group)

    def _normed(self, heads: Tensor) -> Tensor:
        if self._query_norm is None or self._key_norm is None:
            return heads
        queries, keys = torch.split(heads, [self._spec.num_heads, self._spec.num_kv_heads], dim=1)
        return torch.cat((self._query_norm(queries), self._key_norm(keys)), dim=1)


def attention_specs(decoder: DecoderConfig) -> list[AttentionSpec]:
    """What a decoder's layers ask of attention, those that have any."""
    return [attention_spec(decoder, layer) for layer in decoder.layers if layer.attends]


def attention_spec(decoder: DecoderConfig, layer: LayerConfig) -> AttentionSpec:
    """What one layer asks of attention."""
    if decoder.latent is not None:
        return _latent_spec(decoder, decoder.latent, layer)
    return AttentionSpec(
        num_heads=decoder.num_heads,
        num_kv_heads=decoder.num_kv_heads,
        head_dim=decoder.head_dim,
        scale=decoder.attention_scale,
        window=layer.window,
        soft_cap=decoder.attention_soft_cap,
        sinks=torch.empty(decoder.num_heads, device="meta") if decoder.sinks else None,
    )


def _latent_spec(decoder: DecoderConfig, latent: LatentConfig, layer: LayerConfig) -> AttentionSpec:
    index = None
    if latent.index is not None and layer.indexed == "own":
        index = IndexSpec(latent.index.num_heads, latent.index.head_dim, latent.index.top_k)
    return AttentionSpec(
        num_heads=decoder.num_heads,
        num_kv_heads=1,
        head_dim=latent.stored_dim,
        scale=decoder.attention_scale,
        latent_dim=latent.latent_dim,
        index=index,
    )
