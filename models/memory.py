"""How much memory this process may use on a CPU."""

from dataclasses import dataclass
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Memory:
    """Of the machine, or of the container where that is less."""

    total_bytes: int
    available_bytes: int


def host_memory(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> Memory:
    """Reads what the kernel says now."""
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    total, available = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    limit = _number(cgroup / "memory.max")
    if limit is None or limit >= total:
        return Memory(total, available)
    used = _number(cgroup / "memory.current") or 0
    return Memory(limit, min(available, max(0, limit - used + _reclaimable(cgroup / "memory.stat"))))


def _number(path: Path) -> int | None:
    """The number in a file; None where there is no file, or no limit ("max")."""
    if not path.exists():
        return None
    text = path.read_text().strip()
    return int(text) if text.isdigit() else None


def _reclaimable(path: Path) -> int:
    """File pages count as used but go when memory is needed."""
    if not path.exists():
        return 0
    fields = dict(line.split() for line in path.read_text().splitlines())
    return int(fields.get("inactive_file", 0))
