"""How much memory a GPU has."""

import torch

from corymb.models.memory import Memory

# Of the GPU's memory, for weights and pools: the rest holds activations, graphs, and what the libraries take.
DEFAULT_SHARE = 0.88


def device_memory(device: torch.device) -> Memory:
    """Reads what the driver says now."""
    available, total = torch.cuda.mem_get_info(device)
    return Memory(total_bytes=total, available_bytes=available)
