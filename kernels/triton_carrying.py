"""Brings together what the tensors of a pool keep in some slots, or takes it back there, in one launch."""

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor

from corymb.kernels.triton_jit import Count, Launch, jit, next_power_of_2

BLOCK_NUMBERS = 2048  # of one program
MOST_IN_A_ROW = 1024


# fmt: off
@jit
def carry_slots(
    tensors: tl.tensor, widths: tl.tensor, offsets: tl.tensor, slots: tl.tensor, packed: tl.tensor,
    num_slots: "Count", packed_stride: tl.tensor,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, GATHERS: tl.constexpr,
) -> None:
    """Program (b, p, c) copies, of slots [b × ROWS, …) of tensor p, the numbers [c × BLOCK, …)."""
    part = tl.program_id(1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    number = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    width = tl.load(widths + part)
    wanted = (row < num_slots)[:, None] & (number < width)[None, :]
    slot = tl.load(slots + row, mask=row < num_slots, other=0)
    held = tl.load(tensors + part).to(packed.dtype) + slot[:, None] * width + number[None, :]
    place = packed + row.to(tl.int64)[:, None] * packed_stride + tl.load(offsets + part) + number[None, :]
    if GATHERS:
        tl.store(place, tl.load(held, mask=wanted), mask=wanted)
    else:
        tl.store(held, tl.load(place, mask=wanted), mask=wanted)
# fmt: on


class TritonCarrier:
    """Carries between [num_slots, numbers] tensors of one type, and [slots carried, numbers of all of them]."""

    def __init__(self, tensors: Sequence[Tensor], launch: Launch) -> None:
        """Keeps the tensors: their memory is named by its address."""
        assert all(tensor.is_contiguous() for tensor in tensors), "a slot's numbers lie side by side"
        self._tensors = tensors
        self._launch = launch
        widths = [tensor.shape[1] for tensor in tensors]
        self.width = sum(widths)
        offsets = [sum(widths[:i]) for i in range(len(widths))]
        addresses = [tensor.data_ptr() for tensor in tensors]
        table = torch.tensor([addresses, widths, offsets], dtype=torch.int64)
        self._table = table.to(tensors[0].device).unbind()
        self._block = min(next_power_of_2(max(widths)), MOST_IN_A_ROW)
        self._num_blocks = -(-max(widths) // self._block)

    def gather(self, slots: Tensor) -> Tensor:
        """What lies in `slots` int64 [N], a row each."""
        packed = torch.empty((len(slots), self.width), dtype=self._tensors[0].dtype, device=slots.device)
        self._carry(slots, packed, gathers=True)
        return packed

    def put(self, packed: Tensor, slots: Tensor) -> None:
        """Sets `slots`, all different, to the rows of `packed`."""
        self._carry(slots, packed, gathers=False)

    def _carry(self, slots: Tensor, packed: Tensor, *, gathers: bool) -> None:
        rows = max(BLOCK_NUMBERS // self._block, 1)
        carry_slots[(-(-len(slots) // rows), len(self._tensors), self._num_blocks)](
            *self._table,
            slots,
            packed,
            len(slots),
            packed.stride(0),
            BLOCK=self._block,
            ROWS=rows,
            GATHERS=gathers,
            **self._launch.plain(num_warps=4),
        )
