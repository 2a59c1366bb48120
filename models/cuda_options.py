"""What an operator may ask of a GPU's runner; needs no GPU packages."""

from dataclasses import dataclass, field

from corymb.kernels.select import Wish


@dataclass(frozen=True, slots=True)
class CudaOptions:
    """What the operator may ask of a GPU's runner."""

    index: int = 0  # of the GPU
    attention: Wish = field(default_factory=Wish)
    graph_max_tokens: int = 256  # of a captured step; 0 captures none
    prefill_graph_max_tokens: int = 0  # of a captured step of long rows; 0 captures none
    max_step_tokens: int = 16384 + 512
    fused_rows: int = 128  # up to so many tokens a step's products are ours where that is faster (triton_products)
    early_launch: bool = True  # let a kernel's start overlap the end of the one before
    ahead_bytes: int = 0  # of the next product's weight that small kernels ask for meanwhile
    library_adds: bool = False  # let the library's products of few rows add to the residual
