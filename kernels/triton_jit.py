"""How our Triton kernels are compiled and launched: on a GPU, or under Triton's interpreter on a CPU."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

import triton
from triton import knobs

Count = Any  # annotates, in quotes, an integer parameter that differs between launches


class Kernel(Protocol):
    """A compiled kernel: `kernel[grid](...)`. Inside another kernel it is a plain function."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        """Binds a launch grid."""
        ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls it from inside another kernel."""
        ...


def jit(function: Callable[..., Any]) -> Kernel:
    """`triton.jit` with a type. Parameters annotated `Count` do not make variants of the kernel by their values."""
    counts = [name for name, kind in function.__annotations__.items() if kind == "Count"]
    return cast("Kernel", triton.jit(function, do_not_specialize=counts))


@dataclass(frozen=True, slots=True)
class Launch:
    """How kernels are launched on this device."""

    interpreted: bool  # Triton's interpreter: bf16 products are wrong there, so operands are widened first
    early: bool  # programmatic dependent launch: a kernel's start overlaps the end of the one before it
    num_sms: int

    def plain(self, num_warps: int) -> dict[str, int | bool]:
        """Keyword arguments for a kernel that does not wait for the one before it by itself."""
        return {"num_warps": num_warps}

    def options(self, num_warps: int, num_stages: int = 1) -> dict[str, int | bool]:
        """Keyword arguments for a launch."""
        if self.interpreted:
            return {"num_warps": num_warps, "num_stages": num_stages}
        return {"num_warps": num_warps, "num_stages": num_stages, "launch_pdl": self.early}


def is_interpreted() -> bool:
    """Whether kernels of this process run under Triton's interpreter (TRITON_INTERPRET=1 at import)."""
    return bool(knobs.runtime.interpret)


def next_power_of_2(number: int) -> int:
    """The smallest power of two that is not below `number`."""
    return 1 << max(number - 1, 0).bit_length()
