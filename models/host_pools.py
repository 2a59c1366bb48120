"""The second tier's memory: pools on the host, and copies between them and the device's."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from corymb.cache.config import CacheConfig
from corymb.cache.writes import HostCopy, PoolName, Rows
from corymb.kernels.attention import AttentionSpec, KVLayer
from corymb.models.placement import Place

WIDE = torch.int64
MOST_AT_ONCE = 256  # slots a copy: bounds what it needs of the device beside the pools


class Carrier(Protocol):
    """Brings together what the tensors of a device pool keep in some slots."""

    def gather(self, slots: Tensor) -> Tensor:
        """What lies in `slots` int64 [N], all that is one slot's side by side."""
        ...

    def put(self, packed: Tensor, slots: Tensor) -> None:
        """Sets `slots`, all different, to the rows of `packed`."""
        ...


@dataclass(frozen=True, slots=True)
class TorchCarrier:
    """For any device, in as many calls as there are tensors."""

    tensors: Sequence[Tensor]  # [num_slots, numbers of a slot] each, all of one type

    def gather(self, slots: Tensor) -> Tensor:
        """See Carrier."""
        return torch.cat([tensor.index_select(0, slots) for tensor in self.tensors], 1)

    def put(self, packed: Tensor, slots: Tensor) -> None:
        """See Carrier."""
        begin = 0
        for tensor in self.tensors:
            end = begin + tensor.shape[1]
            tensor.index_copy_(0, slots, packed[:, begin:end])
            begin = end


@dataclass(frozen=True, slots=True)
class HostPool:
    """One pool: all that the tensors of a device pool keep in a slot lies together, `host[slot]`."""

    device: Carrier
    host: Tensor  # [num_host_slots, numbers of a slot in all tensors], of their type

    def store(self, source: Tensor, target: Sequence[range]) -> None:
        """Copies slots of the device into runs of slots of the host."""
        gathered, at = self.device.gather(source), 0
        for run in target:
            self.host[run.start : run.stop].copy_(gathered[at : at + len(run)], non_blocking=True)
            at += len(run)

    def load(self, source: Sequence[range], target: Tensor) -> None:
        """Copies runs of slots of the host into slots of the device."""
        gathered, at = self.host.new_empty((len(target), self.host.shape[1]), device=target.device), 0
        for run in source:
            gathered[at : at + len(run)].copy_(self.host[run.start : run.stop], non_blocking=True)
            at += len(run)
        self.device.put(gathered, target)

    def put(self, contents: Tensor, target: Tensor) -> None:
        """Sets slots of the device to the rows of `contents`, bytes which lie there too."""
        self.device.put(contents.view(self.host.dtype), target)


class HostPools:
    """Owns the host's pools. Copies are queued where their caller queues."""

    def __init__(self, pools: Mapping[PoolName, HostPool], place: Place, *, layout: str) -> None:
        """`layout`: in words, what lies in a slot of each."""
        self._pools = pools
        self.layout = layout
        self._place = place

    @property
    def contents(self) -> dict[PoolName, Rows]:
        """The host's memory as it is, by pool; without those in which no layer keeps anything."""
        return {name: pool.host.view(torch.uint8).numpy() for name, pool in self._pools.items()}

    def copy(self, copies: Sequence[HostCopy]) -> None:
        """Does the copies of a plan, in their order."""
        for one in copies:
            pool = self._pools.get(one.pool)
            if pool is None:
                continue  # no layer keeps anything there
            for begin in range(0, len(one.source), MOST_AT_ONCE):
                source, target = one.source[begin : begin + MOST_AT_ONCE], one.target[begin : begin + MOST_AT_ONCE]
                if one.contents is not None:
                    pool.put(self._place(one.contents[source]), self._place(target.astype(np.int64)))
                elif one.to_host:
                    pool.store(self._place(source.astype(np.int64)), list(_runs(target)))
                else:
                    pool.load(list(_runs(source)), self._place(target.astype(np.int64)))


def make_host_pools(
    specs: Sequence[AttentionSpec],
    kv: Sequence[KVLayer],
    states: Sequence[Tensor],
    config: CacheConfig,
    place: Place,
    *,
    carrier: Callable[[Sequence[Tensor]], Carrier] = TorchCarrier,
) -> HostPools | None:
    """The pools that a cache with this configuration names; None where it has no second tier. Raises what torch raises
    where the host has too little memory."""
    sizes = config.host
    if sizes is None:
        return None
    layers = list(zip(specs, kv, strict=True))
    tensors: dict[PoolName, list[Tensor]] = {
        "full": [part for spec, layer in layers if spec.window is None for part in _parts(spec, layer)],
        "sliding": [part for spec, layer in layers if spec.window is not None for part in _parts(spec, layer)],
        "recurrent": list(states),
    }
    counts: dict[PoolName, int] = {
        "full": sizes.num_full_tokens,
        "sliding": sizes.num_sliding_tokens,
        "recurrent": sizes.num_states,
    }
    layout = {name: [(tuple(one.shape[1:]), str(one.dtype)) for one in each] for name, each in tensors.items()}
    pools = {name: _host_pool(tensors[name], count, place, carrier) for name, count in counts.items() if tensors[name]}
    return HostPools(pools, place, layout=repr(layout))


def _host_pool(
    tensors: Sequence[Tensor], num_slots: int, place: Place, carrier: Callable[[Sequence[Tensor]], Carrier]
) -> HostPool:
    flat = [tensor.view(len(tensor), -1).view(torch.uint8) for tensor in tensors]
    if all(tensor.shape[1] % WIDE.itemsize == 0 for tensor in flat):
        flat = [tensor.view(WIDE) for tensor in flat]  # gathered byte by byte, copies are several times as slow
    shape = (num_slots, sum(tensor.shape[1] for tensor in flat))
    host = Place(torch.device("cpu")).zeros(shape, flat[0].dtype)
    if place.device.type == "cuda":
        # Pinned where it lies: else a copy would wait for everything before it. torch's own pinned memory comes in
        # powers of two.
        runtime: Any = torch.cuda.cudart  # without types
        torch.cuda.check_error(int(runtime().cudaHostRegister(host.data_ptr(), host.nbytes, 0)))
    return HostPool(carrier(flat), host)


def _parts(spec: AttentionSpec, layer: KVLayer) -> Iterator[Tensor]:
    yield layer.keys
    if spec.latent_dim is None:  # else values are a part of the keys
        yield layer.values
    if layer.index_keys is not None:
        yield layer.index_keys


def _runs(slots: np.ndarray[tuple[int], np.dtype[np.int32]]) -> Iterator[range]:
    """Slots that follow one another, as ranges."""
    breaks = np.flatnonzero(np.diff(slots) != 1) + 1
    for run in np.split(slots, breaks):
        yield range(int(run[0]), int(run[-1]) + 1)
