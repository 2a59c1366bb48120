"""A mixture of experts in place of a layer's MLP."""

from collections.abc import Iterator

import torch
from torch import Tensor

from corymb.models.experts import ExpertWeights, Rule
from corymb.models.experts_config import ExpertsConfig, SharedConfig
from corymb.models.layers import MLP, LayerMLP, Parts, RMSNorm


def layer_mlp(parts: Parts, index: int) -> LayerMLP:
    """The MLP of a layer, dense or routed."""
    layer = f"model.layers.{index}"
    return RoutedMLP(parts, layer) if parts.decoder.layers[index].sparse else MLP(parts, f"{layer}.mlp")


class RoutedMLP:
    """See layers.LayerMLP: a router, its experts, and maybe one that all tokens share."""

    def __init__(self, parts: Parts, layer: str) -> None:
        config = parts.decoder.experts
        assert config is not None, "a sparse layer of a model without experts"
        name = f"{layer}.{config.block}"
        self._group = parts.group
        self._router = parts.exact_linear(f"{name}.{config.router}", bias=config.router_bias)
        correction = parts.weights.take(f"{name}.{config.correction}").float() if config.correction else None
        rule = Rule(config.routing, config.gating, correction)
        self._experts = parts.storage.makers.experts(rule, _each(parts, f"{name}.experts", config))
        self._shared = SharedMLP(parts, name, config.shared) if config.shared else None

    def __call__(self, x: Tensor) -> Tensor:
        """Returns [T, hidden_size] of [T, hidden_size]."""
        return self._group.all_reduce(self._part(x))

    def after(self, delta: Tensor | None, residual: Tensor, norm: RMSNorm) -> Tensor | None:
        """See layers.LayerMLP."""
        return self._part(norm.after_add(delta, residual))

    def _part(self, x: Tensor) -> Tensor:
        """What the layer gives, still to be summed over the ranks; all of them route alike."""
        routed = self._experts(x, self._router(x.float()))
        return routed if self._shared is None else routed.add_(self._shared(x))


class SharedMLP:
    """The expert that all tokens go through, weighed by a gate of its own if it has one."""

    def __init__(self, parts: Parts, name: str, config: SharedConfig) -> None:
        self._mlp = MLP(parts, f"{name}.{config.name}")
        self._gate = parts.linear(f"{name}.{config.gate}", bias=False) if config.gate else None

    def __call__(self, x: Tensor) -> Tensor:
        """Returns [T, hidden_size] of [T, hidden_size], still to be summed over the ranks."""
        out = self._mlp.part(x)
        return out if self._gate is None else out * self._gate(x).sigmoid()


def _each(parts: Parts, name: str, config: ExpertsConfig) -> Iterator[ExpertWeights]:
    """One expert after another; of separate ones, no more than one is held."""
    if config.form == "separate":
        gate, up, down = config.parts
        for expert in range(config.routing.num_experts):
            gate_up = torch.cat([parts.weights.take(f"{name}.{expert}.{part}.weight") for part in (gate, up)])
            yield ExpertWeights(gate_up, parts.weights.take(f"{name}.{expert}.{down}.weight"), None, None)
        return
    gate_ups = parts.weights.take(f"{name}.gate_up_proj")
    gate_up_biases = parts.weights.take(f"{name}.gate_up_proj_bias") if config.bias else None
    downs = parts.weights.take(f"{name}.down_proj")
    down_biases = parts.weights.take(f"{name}.down_proj_bias") if config.bias else None
    for expert, (gate_up, down) in enumerate(zip(gate_ups, downs, strict=True)):
        bias = None if gate_up_biases is None else gate_up_biases[expert]
        down_bias = None if down_biases is None else down_biases[expert]
        if config.form == "interleaved":
            gate_up, down = _parted(gate_up.T), down.T  # noqa: PLW2901
            bias = None if bias is None else _parted(bias)
        yield ExpertWeights(gate_up, down, bias, down_bias)


def _parted(rows: Tensor) -> Tensor:
    """Gate's rows, which are every other one, before up's."""
    return torch.cat((rows[::2], rows[1::2]))
