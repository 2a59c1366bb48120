"""Measures copies between a GPU's pools and the host's, beside what the link gives to one large copy, and how much of
their time is hidden behind the products of a decode step that runs meanwhile.

python benchmarks/gpu_copies.py                  # keys and values of an 8B model, 8,192 tokens
python benchmarks/gpu_copies.py --device cpu --layers 2 --tokens 512      # tries the script itself
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from record import record

from corymb.cache.config import CacheConfig, HostConfig
from corymb.cache.writes import HostCopies, HostCopy
from corymb.kernels.attention import AttentionSpec
from corymb.kernels.triton_carrying import TritonCarrier
from corymb.kernels.triton_jit import Launch
from corymb.models.cuda_copies import CudaCopies
from corymb.models.cuda_device import CudaDevice, HostDevice
from corymb.models.host_pools import HostPools, TorchCarrier, make_host_pools
from corymb.models.placement import Place
from corymb.models.pools import allocate

NUM_KV_HEADS, HEAD_DIM = 8, 128
REPEATS = 7
NUM_ROWS = 64  # of the products: as memory-bound as a decode step's


def main() -> None:
    """The link alone, then both directions, with slots in a row and scattered."""
    options = parse()
    place, count = Place(torch.device(options.device)), options.tokens
    specs = [AttentionSpec(32, NUM_KV_HEADS, HEAD_DIM, HEAD_DIM**-0.5)] * options.layers
    config = CacheConfig(num_full_tokens=2 * count + 1, host=HostConfig(num_full_tokens=2 * count + 1))
    kv = allocate(specs, config, dtype=torch.bfloat16, place=place)
    launch = Launch(interpreted=False, early=False, num_sms=132)
    carrier = TorchCarrier if options.device == "cpu" else lambda tensors: TritonCarrier(tensors, launch)
    pools = make_host_pools(specs, kv, (), config, place, carrier=carrier)
    assert pools is not None
    num_bytes = count * pools.contents["full"].shape[1]
    pinned = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=options.device == "cuda")
    on_device = torch.empty(num_bytes, dtype=torch.uint8, device=place.device)
    in_a_row = np.arange(1, count + 1, dtype=np.int32)
    scattered = np.random.default_rng(1).permutation(2 * count)[:count].astype(np.int32) + 1
    for to_host, name in ((True, "device to host"), (False, "host to device")):
        target, source = (pinned, on_device) if to_host else (on_device, pinned)
        link_s = seconds(lambda target=target, source=source: target.copy_(source, non_blocking=True), options.device)
        record("gpu_tiers", "link_gb_s", num_bytes / link_s / 1e9, "GB/s", direction=name)
        for order, slots in (("in a row", in_a_row), ("scattered", scattered)):
            pair = (
                (scattered, slots) if to_host else (slots, scattered)
            )  # source, target: the device's are never in a row
            copy = HostCopy("full", to_host, *pair)
            spent_s = seconds(lambda copy=copy: pools.copy([copy]), options.device)
            what = {"direction": name, "host_slots": order, "tokens": count}
            record("gpu_tiers", "host_copy_gb_s", num_bytes / spent_s / 1e9, "GB/s", **what)
            record("gpu_tiers", "host_copy_link_share", link_s / spent_s, "share", **what)
            if order == "in a row":
                share = hidden_share(pools, copy, spent_s, options.device)
                record("gpu_tiers", "host_copy_hidden_share", share, "share", **what)


def hidden_share(pools: HostPools, copy: HostCopy, copy_s: float, where: str) -> float:
    """Of the copy's time, what it does not add to that of products that take at least as long."""
    device = CudaDevice() if where == "cuda" else HostDevice()
    copies = CudaCopies(pools, device)
    inputs, hidden = ({"dtype": torch.bfloat16, "device": "cuda"}, 4096) if where == "cuda" else ({}, 256)
    x, weights = torch.randn(NUM_ROWS, hidden, **inputs), torch.randn(hidden, 7 * hidden // 2, **inputs)

    def products(count: int) -> None:
        for _ in range(count):
            torch.mm(x, weights)

    count = int(1.5 * copy_s / (seconds(lambda: products(16), where) / 16)) + 1

    def both() -> None:
        copies.queue(HostCopies(1, [copy]))  # no product awaits it
        products(count)

    return (copy_s + seconds(lambda: products(count), where) - seconds(both, where)) / copy_s


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=8192)
    return parser.parse_args()


def seconds(work: Callable[[], object], device: str) -> float:
    """The median of some calls, each waited for; the first is not counted."""
    found = []
    for _ in range(REPEATS + 1):
        wait(device)
        begun_s = time.perf_counter()
        work()
        wait(device)
        found.append(time.perf_counter() - begun_s)
    return statistics.median(found[1:])


def wait(device: str) -> None:
    """Until the device has done all that it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
