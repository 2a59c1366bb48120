"""Which GPU the driver offers, asked without torch: the main process never imports it."""

import ctypes
import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Device = Literal["auto", "cpu", "cuda"]
ResolvedDevice = Literal["cpu", "cuda"]

_DRIVER = "libcuda.so.1"
_NAME_BYTES = 128
_GB = 1_000_000_000
# Prompt tokens computed in one step. A larger GPU finishes more of them in the time that others may wait.
_CHUNKS = ((20 * _GB, 2048), (60 * _GB, 4096), (160 * _GB, 8192))
_LARGEST_CHUNK = 16384


@dataclass(frozen=True, slots=True)
class Gpu:
    """The GPUs that this process may use, by the first of them."""

    name: str
    total_bytes: int
    count: int = 1


def find_gpu(load: Callable[[str], Any] = ctypes.CDLL) -> Gpu | None:
    """Asks the driver, which heeds CUDA_VISIBLE_DEVICES. None where there is no driver, or no GPU behind it."""
    try:
        cuda = load(_DRIVER)
    except OSError:
        return None
    count, device = ctypes.c_int(), ctypes.c_int()
    name, total = ctypes.create_string_buffer(_NAME_BYTES), ctypes.c_size_t()
    questions: tuple[Callable[[], int], ...] = (
        lambda: cuda.cuInit(0),
        lambda: cuda.cuDeviceGetCount(ctypes.byref(count)),
        lambda: cuda.cuDeviceGet(ctypes.byref(device), 0),  # an error where there are none
        lambda: cuda.cuDeviceGetName(name, _NAME_BYTES, device),
        lambda: cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device),
    )
    if any(ask() != 0 for ask in questions) or count.value < 1:
        return None
    return Gpu(name.value.decode(errors="replace"), total.value, count.value)


def resolve_device(asked: Device, gpu: Gpu | None) -> ResolvedDevice:
    """What `auto` means here; anything else stays, and whoever builds the model says what is wrong with it."""
    if asked != "auto":
        return asked
    return "cuda" if gpu is not None and _has_packages() else "cpu"


def chunk_tokens(device: ResolvedDevice, gpu: Gpu | None) -> int:
    """The default of --chunked-prefill-size."""
    if device == "cpu" or gpu is None:
        return _CHUNKS[0][1]
    return next((tokens for below, tokens in _CHUNKS if gpu.total_bytes < below), _LARGEST_CHUNK)


def _has_packages() -> bool:
    """Whether torch can use a GPU and Triton is there."""
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        return not importlib.metadata.version("torch").endswith("+cpu")
    except importlib.metadata.PackageNotFoundError:
        return False
