"""Which attention back ends a GPU server uses: what the operator asked for, or the best that is installed."""

import importlib.util
from dataclasses import dataclass
from typing import Literal

Name = Literal["flashinfer", "triton", "torch"]
Asked = Literal["auto", "flashinfer", "triton", "torch"]


class UnavailableBackend(ValueError):
    """The operator asked for a back end that cannot work here; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What the operator asked for; a phase's own wish goes before the common one."""

    both: Asked = "auto"
    prefill: Asked = "auto"
    decode: Asked = "auto"
    deterministic: bool = False


@dataclass(frozen=True, slots=True)
class Selected:
    """The back ends, and the sentence that the log owes the operator where one is not the first choice."""

    prefill: Name
    decode: Name
    note: str | None = None


def select(wish: Wish, *, has_flashinfer: bool, ours: str | None = None) -> Selected:
    """Decides. `ours`: what the model's attention has that only our own back ends do. Raises UnavailableBackend."""
    prefill = wish.both if wish.prefill == "auto" else wish.prefill
    decode = wish.both if wish.decode == "auto" else wish.decode
    if "flashinfer" in (prefill, decode) and not has_flashinfer:
        raise UnavailableBackend("FlashInfer is not installed; install corymb[gpu] or use --attention-backend triton.")
    if ours and "flashinfer" in (prefill, decode):
        raise UnavailableBackend(f"FlashInfer does not serve models with {ours} here; use --attention-backend triton.")
    if wish.deterministic and "flashinfer" in (prefill, decode):
        raise UnavailableBackend("FlashInfer is not deterministic across batches; use --attention-backend triton.")
    if "torch" in (prefill, decode) and prefill != decode:
        raise UnavailableBackend("The torch back end serves both phases or none; use --attention-backend torch.")
    note = None
    if prefill == "auto":
        prefill = "flashinfer" if has_flashinfer and not wish.deterministic and not ours else "triton"
        if not has_flashinfer:
            note = "FlashInfer is not installed: attention falls back to Triton."
    # One launch a layer, planned on the device: FlashInfer's decode would put its planning into every step.
    return Selected(prefill, "triton" if decode == "auto" else decode, note)


def has_flashinfer() -> bool:
    """Whether the package is there; it is imported only when chosen, since that takes seconds."""
    return importlib.util.find_spec("flashinfer") is not None
