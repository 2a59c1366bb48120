"""Lays out rows of different widths one after another, where the device alone knows where they stand and how wide they
are: in plain torch, without waiting for it."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Windows:
    """What R rows verify: each its anchor, at position starts[r], and widths[r] - 1 of its drafts behind it."""

    rows: Tensor  # int64 [R], rows of the page table
    starts: Tensor  # int32 [R]
    widths: Tensor  # int32 [R], at least 1
    anchors: Tensor  # int64 [R]
    drafts: Tensor  # int64 [R, P]


@dataclass(frozen=True, slots=True)
class Packed:
    """T tokens, and N rows that hold them: R of the windows, then rows of one token at slot 0 of row 0, and of none."""

    rows: Tensor  # int32 [N]
    widths: Tensor  # int32 [N]
    starts: Tensor  # int32 [N]
    offsets: Tensor  # int32 [N + 1]
    owners: Tensor  # int32 [T], index of the token's window; R for padding
    places: Tensor  # int32 [T], tokens before it in its window
    token_ids: Tensor  # int64 [T]
    positions: Tensor  # int64 [T]
    slots: Tensor  # int64 [T]
    sliding_slots: Tensor | None  # int64 [T]

    def first(self, num_tokens: int) -> "Packed":
        """Room for so many tokens, in the same memory."""
        sliding = self.sliding_slots
        return Packed(
            rows=self.rows[:num_tokens],
            widths=self.widths[:num_tokens],
            starts=self.starts[:num_tokens],
            offsets=self.offsets[: num_tokens + 1],
            owners=self.owners[:num_tokens],
            places=self.places[:num_tokens],
            token_ids=self.token_ids[:num_tokens],
            positions=self.positions[:num_tokens],
            slots=self.slots[:num_tokens],
            sliding_slots=None if sliding is None else sliding[:num_tokens],
        )


def room(num_tokens: int, device: torch.device, *, sliding: bool) -> Packed:
    """Memory for so many tokens."""

    def zeros(dtype: torch.dtype) -> Tensor:
        return torch.zeros(num_tokens, dtype=dtype, device=device)

    narrow, wide = torch.int32, torch.int64
    return Packed(
        rows=zeros(narrow),
        widths=zeros(narrow),
        starts=zeros(narrow),
        offsets=torch.zeros(num_tokens + 1, dtype=narrow, device=device),
        owners=zeros(narrow),
        places=zeros(narrow),
        token_ids=zeros(wide),
        positions=zeros(wide),
        slots=zeros(wide),
        sliding_slots=zeros(wide) if sliding else None,
    )


class Packing(Protocol):
    """A back end."""

    def __call__(self, windows: Windows, table: Tensor, slot_map: Tensor | None, out: Packed) -> None:
        """Packs windows of as many tokens as `out` has room for, or fewer; the page table [num_rows, context_length]
        has their slots. N is T. `slot_map`: see RaggedLayout.full_to_sliding."""
        ...


def pack(windows: Windows, table: Tensor, slot_map: Tensor | None, num_tokens: int) -> Packed:
    """The same in plain torch."""
    num_rows, device = len(windows.rows), windows.rows.device
    ends = windows.widths.cumsum(0, dtype=torch.int32)
    token = torch.arange(num_tokens, dtype=torch.int32, device=device)
    owners = torch.searchsorted(ends, token, right=True, out_int32=True)
    real, safe = owners < num_rows, owners.clamp(max=num_rows - 1).long()
    places = torch.where(real, token - (ends - windows.widths)[safe], 0)
    positions = torch.where(real, windows.starts[safe] + places, 0).long()
    # Padding looks at the row of the last window, too: at a position that exists.
    slots = torch.where(real, table[windows.rows[safe], positions], 0).long()
    known = torch.cat((windows.anchors[:, None], windows.drafts), dim=1)
    return Packed(
        rows=_filled(windows.rows.int(), num_tokens, 0),
        widths=_widths(windows.widths, ends, num_tokens),
        starts=_filled(windows.starts, num_tokens, 0),
        offsets=_offsets(windows.widths, ends, num_tokens),
        owners=owners,
        places=places,
        token_ids=torch.where(real, known[safe, places.long()], 0),
        positions=positions,
        slots=slots,
        sliding_slots=None if slot_map is None else slot_map[slots].long(),
    )


def _filled(values: Tensor, size: int, padding: int) -> Tensor:
    return torch.cat((values, values.new_full((size - len(values),), padding)))


def _widths(widths: Tensor, ends: Tensor, num_tokens: int) -> Tensor:
    further = torch.arange(num_tokens - len(widths), dtype=torch.int32, device=widths.device)
    return torch.cat((widths, (ends[-1] + further < num_tokens).int()))


def _offsets(widths: Tensor, ends: Tensor, num_tokens: int) -> Tensor:
    further = torch.arange(num_tokens - len(widths) + 1, dtype=torch.int32, device=widths.device)
    return torch.cat((ends - widths, (ends[-1] + further).clamp(max=num_tokens)))
