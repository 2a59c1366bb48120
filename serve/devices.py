"""Whether this machine has a GPU that the scheduler can use; asked without torch."""

import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Literal

Device = Literal["auto", "cpu", "cuda"]

_DRIVER = Path("/dev/nvidiactl")


def resolve_device(device: Device) -> Literal["cpu", "cuda"]:
    """What `auto` means here; anything else stays."""
    if device != "auto":
        return device
    return "cuda" if _DRIVER.exists() and _has_packages() else "cpu"


def _has_packages() -> bool:
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        return not importlib.metadata.version("torch").endswith("+cpu")
    except importlib.metadata.PackageNotFoundError:
        return False
