"""One rank of several that sum rows: on GPUs through the product's group, else our kernel alone, interpreted.

Run as `summing_rank.py RANK SIZE FOLDER`. Ends with 0 when every sum was right, with the same bits on all ranks.
"""

import mmap
import os
import sys
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import torch
from torch import Tensor

from corymb.models.gloo_group import GlooGroup
from corymb.models.group import Group
from corymb.models.meeting import Meeting, Ranks

ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    os.environ["TRITON_INTERPRET"] = "1"

from corymb.kernels.attention import HeadChanges  # noqa: E402, F401 - kernels before what imports them
from corymb.kernels.operations import Norm  # noqa: E402
from corymb.kernels.sampling import Choice  # noqa: E402
from corymb.kernels.torch_operations import TorchOperations  # noqa: E402
from corymb.kernels.triton_all_reduce import MOST_PICKED_ROWS, PickRows, SumRows  # noqa: E402
from corymb.kernels.triton_jit import Launch  # noqa: E402

EPS = 1e-5
Sum = Callable[[Tensor, Tensor | None, Norm | None], Tensor]
Pick = Callable[[Tensor, Choice, int], Choice]
GROUPS: list[Group] = []


def main(rank: int, size: int, folder: Path) -> None:
    """Compares sums of several shapes and types with what they should be."""
    ranks = Ranks(Meeting(rank, size, size, folder / "ranks", 60, 60))
    host = ranks.group("host")
    for name, dtype, shapes, work in on_gpu(ranks, host) if ON_GPU else interpreted(host, folder):
        for index, (num_rows, width) in enumerate(shapes):
            check(name, dtype, (num_rows, width, index), host, work)
    check_picks(host, *(picking_on_gpu(ranks, host) if ON_GPU else picking_interpreted(host, folder)))
    print("right")


def check(name: str, dtype: torch.dtype, what: tuple[int, int, int], host: GlooGroup, work: Sum) -> None:
    """One shape, plainly and with the norm."""
    num_rows, width, seed = what
    device = "cuda" if ON_GPU else "cpu"
    make = torch.Generator().manual_seed(seed)
    parts = [torch.randn(num_rows, width, generator=make).to(device, dtype) for _ in range(host.size)]
    before = torch.randn(num_rows, width, generator=make).to(device, dtype)
    norm = Norm(torch.rand(width, generator=make).to(device) + 0.5, EPS)
    total = sum(part.float() for part in parts).to(dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    plain = work(parts[host.rank].clone(), None, None).clone()
    residual = before.clone()
    normed = work(parts[host.rank].clone(), residual, norm).clone()
    expected = before.clone()
    expected_norm = TorchOperations().add_rms_norm(total, expected, norm.weight, EPS)
    for found, wanted in ((plain, total), (residual, expected), (normed, expected_norm)):
        error = float((found.float() - wanted.float()).abs().max())
        assert error <= tolerance * max(1.0, float(wanted.float().abs().max())), (name, what, error)
        gathered = host.all_gather(found.cpu().contiguous())
        assert all(torch.equal(gathered[0], other) for other in gathered), (name, what, "bits differ between ranks")


def check_picks(host: GlooGroup, pick: Pick, between: Callable[[], object]) -> None:
    """Rows whose best token is on either rank, on both, and unusable."""
    device = "cuda" if ON_GPU else "cpu"
    for seed, num_rows in enumerate((1, 5, 130)):
        make = torch.Generator().manual_seed(seed)
        scores = torch.randint(-3, 4, (num_rows, 10 * host.size), generator=make).float()  # many equals
        scores[-1, 7] = float("nan")
        own = scores[:, 10 * host.rank : 10 * (host.rank + 1)].contiguous().to(device)
        value, choice = own.max(dim=1)
        expected = scores[:, :].max(dim=1)
        found = pick(own, Choice(choice, value.isfinite()), 10 * host.rank)
        usable = expected.values.isfinite()
        assert found.usable.cpu().tolist() == usable.tolist(), num_rows
        assert found.token_ids.cpu()[usable].tolist() == expected.indices[usable].tolist(), num_rows
        between()


def picking_interpreted(host: GlooGroup, folder: Path) -> tuple[Pick, Callable[[], object]]:
    """The kernel, on memory that the ranks' processes share."""
    launch = Launch(interpreted=True, early=False, num_sms=3)
    flags, buffer = shared(host, folder, "picking", 8192), shared(host, folder, "picked", 8 * MOST_PICKED_ROWS)
    pick_rows = PickRows(flags, launch, rank=host.rank, size=host.size)

    def pick(scores: Tensor, own: Choice, first: int) -> Choice:
        return Choice(*pick_rows(scores, own.token_ids, own.usable, first, buffer))

    return pick, lambda: host.least([0])


def picking_on_gpu(ranks: Ranks, host: GlooGroup) -> tuple[Pick, Callable[[], object]]:
    """The group's own; sums lie between, as in a step."""
    group, x = GROUPS[0], torch.zeros(1, 4096, device="cuda", dtype=torch.bfloat16)
    return group.choose, lambda: group.all_reduce(x)


def interpreted(host: GlooGroup, folder: Path) -> Iterator[tuple[str, torch.dtype, list[tuple[int, int]], Sum]]:
    """The kernel, on memory that the ranks' processes share. Odd widths, fewer programs than rows, and more."""
    launch = Launch(interpreted=True, early=False, num_sms=3)
    shapes = [(1, 40), (5, 48), (2, 64), (7, 33)]
    flags, *buffers = (shared(host, folder, name, 8192) for name in ("flags", "first", "second"))
    host.least([0])
    for pushed in (0, 7):
        sum_rows, turn = SumRows(flags, launch, rank=host.rank, size=host.size, pushed=pushed), cycle(buffers)

        def work(x: Tensor, residual: Tensor | None, norm: Norm | None, sum_rows=sum_rows, turn=turn) -> Tensor:
            return sum_rows(x, next(turn), residual=residual, norm=norm)

        yield f"{pushed} rows pushed", torch.float32, shapes, work


def shared(host: GlooGroup, folder: Path, name: str, num_bytes: int) -> Tensor:
    """Where this process finds each rank's part of some memory: int64 [size]."""
    (folder / f"{name}-{host.rank}").write_bytes(bytes(num_bytes))
    host.least([0])
    addresses = []
    for rank in range(host.size):
        with (folder / f"{name}-{rank}").open("r+b") as file:
            mapped = torch.frombuffer(mmap.mmap(file.fileno(), num_bytes), dtype=torch.uint8)
        KEPT.append(mapped)
        addresses.append(mapped.data_ptr())
    return torch.tensor(addresses)


KEPT: list[Tensor] = []


def on_gpu(ranks: Ranks, host: GlooGroup) -> Iterator[tuple[str, torch.dtype, list[tuple[int, int]], Sum]]:
    """Every way, through captured graphs as in a step, and the group's own choice."""
    from corymb.kernels.triton_operations import TritonOperations
    from corymb.models.cuda_build import make_device
    from corymb.models.cuda_group import CudaGroup, Sums
    from corymb.models.cuda_sums import Buffers, Fused, Nccl, Torch

    device = make_device(host.rank)
    num_sms = torch.cuda.get_device_properties(device.device).multi_processor_count
    launch = Launch(interpreted=False, early=True, num_sms=num_sms)
    operations = TritonOperations(launch)
    group = CudaGroup(ranks, host, device, launch, deterministic=False)
    group.prepare(Sums(4096, torch.bfloat16, 8192), operations)
    GROUPS.append(group)
    if host.rank == 0:
        print(group.detail)
    buffers = Buffers(4096 * 4096, torch.bfloat16, device.device)
    pushed = Buffers(host.size * 64 * 4096, torch.bfloat16, device.device)
    ways = [group, Fused(buffers, launch, device.device), Fused(pushed, launch, device.device, pushed=64)]
    ways += [Torch(buffers, shots=1), Torch(buffers, shots=2), Nccl()]
    torch.cuda.synchronize()
    host.least([0])
    for way in ways:
        most = getattr(way, "most_rows", 1000)
        shapes = [(count, 4096) for count in (1, 3, 64, 256, 1000) if count <= most]

        def work(x: Tensor, residual: Tensor | None, norm: Norm | None, way=way) -> Tensor:
            def twice() -> Tensor:  # the second sum takes the other buffer: see Buffers
                way.all_reduce(x.clone())
                if residual is None or norm is None:
                    return way.all_reduce(x.clone())
                return way.add_rms_norm(x.clone(), residual.copy_(kept), norm, operations)

            kept = x if residual is None else residual.clone()
            return replayed(twice)

        yield getattr(way, "name", "group"), torch.bfloat16, shapes, work

    def replayed(work: Callable[[], Tensor]) -> Tensor:
        """What the third replay of a graph gives."""
        work()
        torch.cuda.synchronize()
        outs: list[Tensor] = []
        replay = device.capture(lambda: outs.append(work()))
        for _ in range(3):
            replay()
        torch.cuda.synchronize()
        return outs[0]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
