"""Windows of drafts are laid out as plain torch does it, into memory that holds anything."""

from dataclasses import fields

import pytest

from corymb.kernels.packing import Windows, pack, room
from corymb.kernels.triton_packing import TritonPacking


@pytest.mark.parametrize(
    ("widths", "most_drafts", "padding", "sliding"),
    [([1, 4, 2], 3, 0, False), ([3, 1, 1, 4], 3, 5, True), ([1, 1], 0, 2, False), ([6], 5, 1, True)],
)
def test_windows_are_laid_out_as_in_plain_torch(place, widths, most_drafts, padding, sliding) -> None:
    check(place, widths, most_drafts, padding, sliding=sliding)


@pytest.mark.gpu
def test_many_windows(place) -> None:
    check(place, place.numbers.integers(1, 9, 256).tolist(), 7, 100, sliding=True)


def check(place, widths, most_drafts, padding, *, sliding) -> None:
    count, numbers = len(widths), place.numbers
    table = numbers.permutation(40 * (count + 1)).astype("int32").reshape(count + 1, 40)
    slot_map = place.put(numbers.permutation(table.size).astype("int32")) if sliding else None
    windows = Windows(
        rows=place.put(numbers.permutation(count) + 1),
        starts=place.put(numbers.integers(0, 31, count).astype("int32")),
        widths=place.put(numbers.integers(1, 2, count).astype("int32") * widths).int(),
        anchors=place.put(numbers.integers(0, 90, count)),
        drafts=place.put(numbers.integers(0, 90, (count, most_drafts))),
    )
    num_tokens = sum(widths) + padding
    out = room(num_tokens + 3, place.device, sliding=sliding)
    for each in fields(out):
        memory = getattr(out, each.name)
        if memory is not None:
            memory.fill_(-77)
    packing = TritonPacking(place.launch, max_rows=count + 1, max_width=1 + most_drafts)
    packing(windows, place.put(table), slot_map, out.first(num_tokens))
    expected = pack(windows, place.put(table), slot_map, num_tokens)
    for each in fields(out):
        mine, other = getattr(out, each.name), getattr(expected, each.name)
        assert (mine is None) == (other is None)
        if mine is not None:
            assert mine[: len(other)].tolist() == other.tolist(), each.name
            assert (mine[len(other) :] == -77).all()
