"""What an operator may ask of a GPU, and which wishes exclude each other."""

from collections.abc import Iterator
from typing import Literal

import msgspec

from corymb.serve.devices import ResolvedDevice

Backend = Literal["auto", "flashinfer", "triton", "torch"]
KvCacheType = Literal["auto", "fp8_e4m3", "fp8_e5m2"]
DecodeGraphs = Literal["full", "disabled"]
PrefillGraphs = Literal["piecewise", "full", "disabled"]

MAX_GRAPH_TOKENS = 256  # of a captured decode step, unless the operator says more


class GpuOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Wishes as they were given. None, or auto: the server decides."""

    attention_backend: Backend = "auto"
    prefill_attention_backend: Backend = "auto"
    decode_attention_backend: Backend = "auto"
    kv_cache_dtype: KvCacheType = "auto"
    cuda_graph_max_bs_decode: int | None = None
    cuda_graph_backend_decode: DecodeGraphs | None = None
    cuda_graph_backend_prefill: PrefillGraphs | None = None
    disable_cuda_graph: bool = False
    enable_deterministic_inference: bool = False

    @property
    def graph_tokens(self) -> int:
        """Of the largest captured decode step; 0 for none."""
        if self.disable_cuda_graph or self.cuda_graph_backend_decode == "disabled":
            return 0
        return MAX_GRAPH_TOKENS if self.cuda_graph_max_bs_decode is None else self.cuda_graph_max_bs_decode

    @property
    def captures_prefill(self) -> bool:
        """Whether prompts' steps are captured, between their attention layers."""
        if self.disable_cuda_graph:
            return False
        return self.cuda_graph_backend_prefill in (None, "piecewise")


def conflicts(options: GpuOptions) -> Iterator[str]:
    """A sentence for each pair of wishes that cannot both be met."""
    decode, prefill = options.cuda_graph_backend_decode, options.cuda_graph_backend_prefill
    if prefill == "full":
        yield (
            "--cuda-graph-backend-prefill full is not available: attention over prompts is planned anew for every "
            "step; use piecewise or disabled."
        )
    if options.disable_cuda_graph and (decode == "full" or prefill == "piecewise"):
        yield "--disable-cuda-graph excludes other --cuda-graph-backend-decode and -prefill than disabled."
    if options.cuda_graph_max_bs_decode is not None and not options.graph_tokens:
        yield "--cuda-graph-max-bs-decode needs decode graphs, which are disabled; leave one of the two out."


def misplaced(options: GpuOptions, device: ResolvedDevice) -> Iterator[str]:
    """A sentence for each wish that the device cannot meet."""
    if device == "cuda":
        return
    wishes = {
        "--kv-cache-dtype": options.kv_cache_dtype,
        "--attention-backend": options.attention_backend,
        "--prefill-attention-backend": options.prefill_attention_backend,
        "--decode-attention-backend": options.decode_attention_backend,
        "--cuda-graph-max-bs-decode": options.cuda_graph_max_bs_decode,
        "--cuda-graph-backend-decode": options.cuda_graph_backend_decode,
        "--cuda-graph-backend-prefill": options.cuda_graph_backend_prefill,
    }
    for flag, wish in wishes.items():
        if wish not in (None, "auto", "torch", "disabled"):
            yield f"{flag} {wish} needs a GPU, and this server computes on the CPU; leave it out."
