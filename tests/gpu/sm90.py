"""Compiles kernels for a Hopper GPU on a machine without one: launches do nothing, all before them is real."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver

HOPPER_SHARED_BYTES = 232448
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the assembler says of one kernel."""

    name: str
    registers: int
    stack_bytes: int  # local memory: spills and arrays indexed at run time
    shared_bytes: int
    num_warps: int
    ptx: str
    ttgir: str


class _Utils:
    def __init__(self, seen: list[Compiled]) -> None:
        self.seen = seen

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": HOPPER_SHARED_BYTES, "multiprocessor_count": 132}

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        return 1, 1, 0, 0, 1024


class HopperDriver(DriverBase):
    """Stands in for the CUDA driver. `seen` lists every kernel that was compiled."""

    def __init__(self) -> None:
        self.seen: list[Compiled] = []
        self.utils = _Utils(self.seen)

    def launcher_cls(self, src: Any, metadata: Any) -> Any:
        return lambda *args: None

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> Any:
        raise NotImplementedError

    def get_benchmarker(self) -> Any:
        raise NotImplementedError

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty


def install() -> HopperDriver:
    """Makes this process compile for sm_90."""
    hopper = HopperDriver()
    driver.set_active(hopper)

    def note(module: Any, function: Any, name: str, group: dict[str, str], key: str) -> None:
        hopper.seen.append(_inspect(name, group))

    triton.knobs.runtime.kernel_load_start_hook = note
    return hopper


def _inspect(name: str, group: dict[str, str]) -> Compiled:
    texts = {Path(path).suffix: path for path in group.values()}
    metadata = Path(texts[".json"]).read_text()
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(Path(texts[".cubin"]).read_bytes())
        cubin.flush()
        usage = subprocess.run(
            [CUOBJDUMP, "--dump-resource-usage", cubin.name], capture_output=True, text=True, check=True
        ).stdout
    numbers = {key: int(value) for key, value in re.findall(r"(\w+):(\d+)", usage)}
    return Compiled(
        name=name,
        registers=numbers["REG"],
        stack_bytes=numbers["STACK"],
        shared_bytes=int(re.search(r'"shared": (\d+)', metadata)[1]),  # type: ignore[index]
        num_warps=int(re.search(r'"num_warps": (\d+)', metadata)[1]),  # type: ignore[index]
        ptx=Path(texts[".ptx"]).read_text(),
        ttgir=Path(texts[".ttgir"]).read_text(),
    )
