"""Kernel tests run on a GPU, also with real shapes (marker `gpu`), or under Triton's interpreter with tiny ones."""

import importlib
import os
import pkgutil
import sys
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import corymb.kernels

ON_GPU = torch.cuda.is_available()
INTERPRETER = "TRITON_INTERPRET"
HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "runner")]  # for kernels of tests and `by_hand`


def import_kernels() -> None:
    """What a kernel runs on is decided when it is imported; tests of other folders must find the process as it was."""
    if not ON_GPU:
        # Triton's own functions, such as tl.cumsum, are decided then, too. Compiled ones would fail in every test.
        assert "triton.language" not in sys.modules, "a test module that was collected before tests/gpu imports Triton"
        os.environ[INTERPRETER] = "1"
    for module in pkgutil.iter_modules(corymb.kernels.__path__):
        if module.name.startswith("triton_"):
            importlib.import_module(f"corymb.kernels.{module.name}")
    for name in ("noise_kernel", "ahead_kernel"):
        importlib.import_module(name)
    if not ON_GPU:
        del os.environ[INTERPRETER]


import_kernels()


from corymb.kernels.attention import AttentionSpec, KVLayer, RaggedLayout  # noqa: E402
from corymb.kernels.triton_jit import Launch  # noqa: E402

DEVICE = torch.device("cuda" if ON_GPU else "cpu")
# The interpreter cuts bfloat16 off where the hardware rounds.
TOLERANCES = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 8e-3 if ON_GPU else 2e-2}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real shapes and captured graphs need a GPU."""
    if not ON_GPU:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU here"))


@dataclass(frozen=True)
class Place:
    """Where kernels run, and random inputs for them."""

    device: torch.device
    launch: Launch
    generator: torch.Generator
    numbers: np.random.Generator

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
        """Fresh normal numbers, as the device type holds them."""
        return (torch.randn(shape, generator=self.generator) * scale).to(self.device, dtype)

    def poison(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Memory in which nothing may be left as it is."""
        return torch.full(shape, float("nan"), dtype=torch.float32).to(self.device, dtype)

    def put(self, array: np.ndarray) -> Tensor:
        """An array on the device."""
        return torch.from_numpy(array).to(self.device)

    def assert_close(self, actual: Tensor, expected: Tensor, tolerance: float | None = None) -> None:
        """Relative error over all elements; a NaN never passes."""
        actual, expected = actual.double(), expected.double()
        error = float((actual - expected).norm() / expected.norm().clamp_min(1e-30))
        assert error <= (tolerance or 1e-5), error


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU, these tests' own process takes the interpreter for one."""
    if not ON_GPU:
        monkeypatch.setenv(INTERPRETER, "1")


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.empty` gives NaN, or the most negative integer: what a kernel leaves unwritten fails a comparison."""

    empty = torch.empty

    def poisoned(*size: int | tuple[int, ...], **options: Any) -> Tensor:
        if options.get("device") == "meta":  # holds nothing
            return empty(*size, **options)
        tensor = torch.zeros(*size, **options)
        if tensor.is_floating_point():
            return tensor.fill_(float("nan"))
        return tensor if tensor.dtype == torch.bool else tensor.fill_(torch.iinfo(tensor.dtype).min)

    monkeypatch.setattr(torch, "empty", poisoned)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The same in every run, and another for every test; by the clock in the profile `soak`. A failure prints it."""
    by_clock = request.config.getoption("--hypothesis-profile") == "soak"
    seed = time.time_ns() % (1 << 31) if by_clock else zlib.crc32(request.node.nodeid.encode()) >> 1
    print(f"seed {seed}")
    return seed


@pytest.fixture
def place(seed: int) -> Place:
    """The device, seeded."""
    return make_place(seed)


def make_place(seed: int) -> Place:
    """A place with a seed."""
    # Under the interpreter, few lanes: each one costs milliseconds. Odd, so that rows are cut where they like.
    num_sms = torch.cuda.get_device_properties(0).multi_processor_count if ON_GPU else 3
    launch = Launch(interpreted=not ON_GPU, early=False, num_sms=num_sms)
    return Place(DEVICE, launch, torch.Generator().manual_seed(seed), np.random.default_rng(seed))


@dataclass(frozen=True)
class Case:
    """One layer's attention over one ragged step, keys of earlier steps already in a pool that is NaN elsewhere."""

    spec: AttentionSpec
    layout: RaggedLayout
    q: Tensor
    k: Tensor
    v: Tensor
    cache: KVLayer

    def stored(self) -> KVLayer:
        """The pool in float32 with the new tokens in it, scales applied: what the reference reads."""
        slots = self.layout.slots if self.spec.window is None else self.layout.sliding_slots
        cache = self.cache

        def filled(pool: Tensor, new: Tensor, scale: float) -> Tensor:
            held = (new.float() / scale).to(pool.dtype) if pool.dtype.itemsize == 1 else new
            full = pool.float()
            full[slots] = held.float()
            return full * scale

        return KVLayer(filled(cache.keys, self.k, cache.key_scale), filled(cache.values, self.v, cache.value_scale))


@pytest.fixture
def make_case(place: Place):
    """A factory of cases."""

    def make(
        spec: AttentionSpec,
        widths: Sequence[int],
        starts: Sequence[int],
        *,
        dtype: torch.dtype = torch.float32,
        kv_dtype: torch.dtype | None = None,
        scales: tuple[float, float] = (1.0, 1.0),
        context_length: int | None = None,
    ) -> Case:
        layout = make_layout(place, widths, starts, sliding=spec.window is not None, context_length=context_length)
        num_tokens = layout.num_tokens
        highest = layout.table if layout.full_to_sliding is None else layout.full_to_sliding
        pool_size = int(highest.max()) + 2
        held = kv_dtype or dtype

        def pool(scale: float) -> Tensor:
            numbers = place.normal(pool_size, spec.num_kv_heads, spec.head_dim, dtype=torch.float32) / scale
            return numbers.to(held)

        cache = KVLayer(pool(scales[0]), pool(scales[1]), *scales)
        _poison_unused(cache, layout, spec)

        def new(scale: float) -> Tensor:
            numbers = place.normal(num_tokens, spec.num_kv_heads, spec.head_dim)
            if place.launch.interpreted and held.itemsize == 1:
                # Triton's interpreter loses the carry when rounding to 8 bits turns 1.97 into 2: give it no rounding.
                numbers = (numbers / scale).to(held).float() * scale
            return numbers.to(dtype)

        q = place.normal(num_tokens, spec.num_heads, spec.head_dim, dtype=dtype)
        return Case(spec, layout, q, new(scales[0]), new(scales[1]), cache)

    return make


@pytest.fixture
def lay_out(place: Place):
    """A factory of layouts."""

    def make(widths: Sequence[int], starts: Sequence[int], **options: object) -> RaggedLayout:
        return make_layout(place, widths, starts, **options)  # type: ignore[arg-type]

    return make


def make_layout(
    place: Place,
    widths: Sequence[int],
    starts: Sequence[int],
    *,
    sliding: bool = False,
    context_length: int | None = None,
) -> RaggedLayout:
    """Rows in a random order, every token at a random slot."""
    host_widths, host_starts = np.asarray(widths, np.int32), np.asarray(starts, np.int32)
    lengths = host_starts + host_widths
    context = context_length or int(lengths.max())
    num_slots = int(lengths.sum()) + 7
    slots = place.numbers.permutation(np.arange(1, num_slots, dtype=np.int32))
    rows = place.numbers.permutation(np.arange(1, len(widths) + 1, dtype=np.int32))
    table = np.full((len(widths) + 1, context), -(1 << 20), np.int32)  # an entry past a row's end must not be followed
    table[0] = 0
    offsets = np.concatenate(([0], np.cumsum(host_widths))).astype(np.int32)
    positions, new_slots, taken = [], [], 0
    for row, start, length in zip(rows, host_starts, lengths, strict=True):
        table[row, :length] = slots[taken : taken + length]
        positions.append(np.arange(start, length))
        new_slots.append(table[row, start:length])
        taken += length
    twins = np.concatenate(([0], place.numbers.permutation(num_slots - 1) + 1)).astype(np.int32)  # 0 is nobody's
    to_sliding = twins if sliding else None
    flat_slots = np.concatenate(new_slots).astype(np.int64)
    put = place.put
    return RaggedLayout(
        rows=put(rows),
        widths=put(host_widths),
        starts=put(host_starts),
        offsets=put(offsets),
        positions=put(np.concatenate(positions).astype(np.int64)),
        slots=put(flat_slots),
        sliding_slots=put(to_sliding[flat_slots].astype(np.int64)) if to_sliding is not None else None,
        table=put(table),
        full_to_sliding=put(to_sliding) if to_sliding is not None else None,
        host_rows=rows,
        host_widths=host_widths,
        host_starts=host_starts,
    )


def pad_layout(layout: RaggedLayout, num_rows: int, place: Place) -> RaggedLayout:
    """The layout with rows up to `num_rows`: each of one token at slot 0 of row 0, as a captured graph is filled up."""
    missing = num_rows - layout.num_rows

    def extend(tensor: Tensor, value: int) -> Tensor:
        return torch.cat((tensor, torch.full((missing,), value, dtype=tensor.dtype, device=tensor.device)))

    last = int(layout.offsets[-1])
    tail = torch.arange(last + 1, last + missing + 1, dtype=torch.int32, device=layout.offsets.device)
    sliding = layout.sliding_slots
    return replace(
        layout,
        rows=extend(layout.rows, 0),
        widths=extend(layout.widths, 1),
        starts=extend(layout.starts, 0),
        offsets=torch.cat((layout.offsets, tail)),
        positions=extend(layout.positions, 0),
        slots=extend(layout.slots, 0),
        sliding_slots=None if sliding is None else extend(sliding, 0),
    )


@pytest.fixture
def pad():
    """`pad_layout`."""
    return pad_layout


def _poison_unused(cache: KVLayer, layout: RaggedLayout, spec: AttentionSpec) -> None:
    """NaN wherever this layer has no business: other rows' ends, freed slots, keys behind the window, new tokens."""
    used = torch.zeros(len(cache.keys), dtype=torch.bool)
    for row, start in zip(layout.host_rows.tolist(), layout.host_starts.tolist(), strict=True):
        first = 0 if spec.window is None else max(0, start - spec.window + 1)
        slots = layout.table[row, first:start].cpu().long()
        if spec.window is not None and layout.full_to_sliding is not None:
            slots = layout.full_to_sliding.cpu()[slots].long()
        used[slots] = True
    for pool in (cache.keys, cache.values):
        poisoned = torch.where(used.to(pool.device)[:, None, None], pool.float(), float("nan"))
        pool.copy_(poisoned.to(pool.dtype))


@pytest.fixture
def tolerance():
    """How far a result in a type may be from exact sums."""
    return TOLERANCES.__getitem__
