"""How much the cache keeps in host memory, behind the device's pools."""

from dataclasses import dataclass

from corymb.cache.config import HostConfig, WritePolicy
from corymb.models.memory import Memory
from corymb.models.sizing import NotEnoughMemory, PoolSizes, gib

DEFAULT_RATIO = 2.0


@dataclass(frozen=True, slots=True)
class SecondTier:
    """What the operator asks for."""

    ratio: float = DEFAULT_RATIO  # of the device's pools
    size_bytes: int | None = None  # instead of the ratio
    policy: WritePolicy = "write_through"


def host_config(tier: SecondTier, page_size: int, sizes: PoolSizes, memory: Memory) -> HostConfig:
    """Pools in the proportions of the device's. Raises NotEnoughMemory."""
    ratio = tier.ratio
    if tier.size_bytes is not None and sizes.size_bytes:  # models made for tests may keep nothing
        ratio = tier.size_bytes / sizes.size_bytes
    wanted_bytes = int(ratio * sizes.size_bytes)
    if wanted_bytes > memory.available_bytes:
        raise NotEnoughMemory(
            f"Too little memory: the cache's second tier takes {gib(wanted_bytes)} and {gib(memory.available_bytes)} "
            "are available on the host; lower --hicache-ratio or --hicache-size."
        )

    def tokens(count: int) -> int:
        return (max(int(count * ratio) // page_size, 1) + 1) * page_size if count else 0

    return HostConfig(
        num_full_tokens=tokens(sizes.num_full_tokens),
        num_sliding_tokens=tokens(sizes.num_sliding_tokens),
        num_states=max(int(sizes.num_states * ratio), 1) + 1 if sizes.num_states else 0,
        policy=tier.policy,
        full_bytes=sizes.cost.full,
        sliding_bytes=sizes.cost.sliding,
        state_bytes=sizes.cost.state,
    )
