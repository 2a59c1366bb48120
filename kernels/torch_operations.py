"""The operations in plain torch: the CPU's back end, and the reference for all others."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


class TorchOperations:
    """Works on every device."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Operations."""
        return F.rms_norm(x.float(), (x.shape[-1],), weight, eps).to(x.dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See Operations."""
        return self.rms_norm(residual.add_(x), weight, eps)

    def rope(self, heads: Tensor, turns: Tensor) -> None:
        """See Operations."""
        cos, sin = turns.unsqueeze(1).chunk(2, dim=-1)
        first, second = heads.float().chunk(2, dim=-1)
        heads.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """See Operations."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def gelu_tanh_mul(self, gate_up: Tensor) -> Tensor:
        """See Operations."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.gelu(gate, approximate="tanh").mul_(up)
