"""What this process may use: the smallest of every limit.

Usable CPUs are the smallest of the scheduling affinity, the quota of the process's own cgroup and of each ancestor, and
what Slurm gave. A limit that all local ranks live under is divided by their number. Memory is bounded the same way.
Environment variables are read in this file alone.

A limit that can't be understood never binds, but it stays in `Cpus.limits` as infinity: nothing is dropped silently.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fastload.errors import SettingsError

__all__ = ["Cpus", "Memory", "describe", "major_faults", "switched_off", "usable_cpus", "usable_memory"]

Limit = tuple[str, float]

_ROOT = Path("/")
_PACKAGES = ("fastai", "torch", "torchvision", "pillow", "pillow-simd", "numpy", "fastai-fastload")
_OFF, _ON = ("off", "0", "no", "false"), ("on", "1", "yes", "true", "")
# Kernels write "no limit" in cgroup v1 as the largest multiple of a page below 2**63.
_UNLIMITED_BYTES = 1 << 60
_UNKNOWN_RAM_BYTES = 1 << 30


@dataclass(frozen=True)
class Cpus:
    """`count` usable CPUs (at least 1), the binding limit as a sentence, and every limit as (sentence, CPUs)."""

    count: int
    reason: str
    limits: tuple[Limit, ...]

    def __post_init__(self) -> None:
        if self.count < 1:
            raise SettingsError(f"Cpus.count must be at least 1, found {self.count!r}; give 1 where a limit is smaller")


@dataclass(frozen=True)
class Memory:
    """`bytes` of host memory that may still be taken, and the binding limit as a sentence."""

    bytes: int
    reason: str


def usable_cpus(*, root: Path = _ROOT, environ: Mapping[str, str] | None = None, affinity: int | None = None) -> Cpus:
    """Return how many CPUs this process may keep busy, rounded down, at least 1.

    `root` is the folder that holds `proc` and `sys`; `environ` and `affinity` (CPUs) stand in for the real ones.
    """
    env = os.environ if environ is None else environ
    ranks = _local_ranks(env)
    limits = (
        _affinity_limit(_affinity() if affinity is None else affinity, env, ranks),
        *(_divided(limit, ranks) for limit in _quota_limits(root)),
        *_slurm_limits(env, ranks),
        *_unreadable(env),
    )
    reason, cpus = min(limits, key=lambda limit: limit[1])
    return Cpus(max(1, math.floor(cpus)), reason, limits)


def usable_memory(*, root: Path = _ROOT, environ: Mapping[str, str] | None = None) -> Memory:
    """Return the bytes of host memory this process may still take: its share, if there are several local ranks.

    The smallest of MemAvailable and each cgroup ancestor's limit less its use. Page cache that the kernel can drop
    at once (`inactive_file`) isn't use, nor is it to MemAvailable: a data set read once would fill any cgroup.
    """
    ranks = _local_ranks(os.environ if environ is None else environ)
    limits = [_divided(limit, ranks) for limit in (*_available_ram(root), *_cgroup_headroom(root))]
    unknown = ("free memory is unknown on this system, 1 GiB is assumed", float(_UNKNOWN_RAM_BYTES))
    reason, size = min(limits or [unknown], key=lambda limit: limit[1])
    return Memory(max(0, int(size)), reason)


def major_faults() -> int:
    """Times that this process had to wait for a page from the disk; 0 where the system doesn't count them."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def switched_off(environ: Mapping[str, str] | None = None) -> bool:
    """Return True where FASTLOAD says off, False where it says on or nothing.

    Raises SettingsError for any other value.

    >>> switched_off({"FASTLOAD": "Off"}), switched_off({})
    (True, False)
    """
    value = (os.environ if environ is None else environ).get("FASTLOAD", "")
    word = value.strip().lower()
    if word not in _OFF + _ON:
        raise SettingsError(
            f"FASTLOAD turns fastload on or off, found {value!r}; set it to one of on, 1, yes, true, off, 0, no, false"
        )
    return word in _OFF


def describe(*, root: Path = _ROOT) -> dict[str, str]:
    """Return processor, limits, system and package versions as text, for reports and benchmarks."""
    cpus, memory = usable_cpus(root=root), usable_memory(root=root)
    total = _meminfo(root).get("MemTotal")
    return {
        "cpu": _cpu_model(root),
        "usable_cpus": f"{cpus.count} ({cpus.reason})",
        "ram": f"{'unknown' if total is None else _gib(total)} in all, {_gib(memory.bytes)} usable ({memory.reason})",
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "os": f"{platform.system()} {platform.release()} ({platform.machine()})",
    } | {name: _version(name) for name in _PACKAGES}


# Ranks: how many processes of this training run share the machine.


def _number(env: Mapping[str, str], name: str) -> int | None:
    """Return a positive whole number from the environment; Slurm writes "8(x2)" for eight on each of two nodes."""
    match = re.fullmatch(r"\s*(\d{1,9})(\(x\d+\))?\s*", env.get(name, ""), re.ASCII)
    return (int(match[1]) or None) if match else None


def _unreadable(env: Mapping[str, str]) -> Iterator[Limit]:
    for name in ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        if env.get(name) and _number(env, name) is None:
            yield f"{name}={env[name]!r} is not a positive whole number, ignored", math.inf


def _local_ranks(env: Mapping[str, str]) -> int:
    """Return the ranks on this machine: torchrun sets LOCAL_WORLD_SIZE, srun alone only its own variable."""
    return _number(env, "LOCAL_WORLD_SIZE") or _number(env, "SLURM_NTASKS_PER_NODE") or 1


def _ranks_per_task(env: Mapping[str, str], ranks: int) -> int:
    """Return how many ranks live in one Slurm task: all of them where torchrun is the node's only task."""
    tasks = _number(env, "SLURM_NTASKS_PER_NODE") or _number(env, "SLURM_TASKS_PER_NODE") or ranks
    return max(1, ranks // tasks)


def _divided(limit: Limit, ranks: int) -> Limit:
    name, amount = limit
    return limit if ranks == 1 or math.isinf(amount) else (f"{name} divided by {ranks} local ranks", amount / ranks)


# CPUs.


def _affinity() -> int:
    # macOS and Windows have no sched_getaffinity.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _affinity_limit(cpus: int, env: Mapping[str, str], ranks: int) -> Limit:
    """Return the affinity as a limit; a mask too small for all of Slurm's local tasks belongs to this task alone."""
    within = _ranks_per_task(env, ranks)
    per_task = _number(env, "SLURM_CPUS_PER_TASK")
    own = per_task is not None and cpus < per_task * (ranks // within)
    return _divided((f"scheduling affinity {cpus} CPU", float(cpus)), within if own else ranks)


def _slurm_limits(env: Mapping[str, str], ranks: int) -> Iterator[Limit]:
    per_task, on_node = _number(env, "SLURM_CPUS_PER_TASK"), _number(env, "SLURM_CPUS_ON_NODE")
    if per_task is not None:
        yield _divided((f"SLURM_CPUS_PER_TASK={per_task}", float(per_task)), _ranks_per_task(env, ranks))
    elif on_node is not None:
        yield _divided((f"SLURM_CPUS_ON_NODE={on_node}", float(on_node)), ranks)


def _quota_limits(root: Path) -> Iterator[Limit]:
    for path, text in _quota_texts(root):
        where = _shown(root, path)
        try:
            cpus = _quota(text)
        except (ValueError, OverflowError):
            yield f"cgroup quota {text!r} is not understood, ignored ({where})", math.inf
            continue
        if math.isfinite(cpus):
            yield f"cgroup quota {round(cpus, 3)} CPU ({where})", cpus


def _quota_texts(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield (file, "QUOTA PERIOD" in microseconds), own cgroup first."""
    for folder in _cgroups(root, None):
        text = _read(folder / "cpu.max")
        if text is not None:
            yield folder / "cpu.max", text
    for folder in _cgroups(root, "cpu"):
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota is not None and period is not None:
            yield folder / "cpu.cfs_quota_us", f"{quota} {period}"


def _quota(text: str) -> float:
    """Return CPUs, infinite for no limit ("max", in v1 "-1"); raises ValueError where the text is neither.

    >>> _quota("150000 100000"), _quota("max 100000")
    (1.5, inf)
    """
    quota, period = text.split()
    if quota in ("max", "-1"):
        return math.inf
    if int(quota) <= 0 or int(period) <= 0:
        raise ValueError(text)
    return int(quota) / int(period)


# Memory.


def _available_ram(root: Path) -> Iterator[Limit]:
    available = _meminfo(root).get("MemAvailable")
    if available is not None:
        yield f"available RAM {_gib(available)} ({_shown(root, root / 'proc/meminfo')})", float(available)
    elif root == _ROOT and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        # macOS doesn't say what is free; all of it is the only bound there.
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        yield f"installed RAM {_gib(total)}", float(total)


def _cgroup_headroom(root: Path) -> Iterator[Limit]:
    for folder in _cgroups(root, None):
        # memory.high doesn't kill, but a process above it is slowed to a crawl.
        for name in ("memory.max", "memory.high"):
            yield from _headroom(root, folder / name, folder / "memory.current", "inactive_file")
    for folder in _cgroups(root, "memory"):
        limit, used = folder / "memory.limit_in_bytes", folder / "memory.usage_in_bytes"
        yield from _headroom(root, limit, used, "total_inactive_file")


def _headroom(root: Path, limit_file: Path, used_file: Path, droppable: str) -> Iterator[Limit]:
    limit, used = _bytes(_read(limit_file)), _bytes(_read(used_file))
    if limit is None or used is None or limit >= _UNLIMITED_BYTES:
        return
    cache = re.search(rf"^{droppable} (\d+)$", _read(limit_file.parent / "memory.stat") or "", re.MULTILINE)
    free = limit - max(0, used - (int(cache[1]) if cache else 0))
    yield f"cgroup memory {_gib(limit)}, {_gib(max(0, free))} of it free ({_shown(root, limit_file)})", float(free)


def _bytes(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"\d{1,20}", text, re.ASCII) else None


def _meminfo(root: Path) -> dict[str, int]:
    """Return /proc/meminfo in bytes; empty where there is none."""
    found = re.findall(r"^(\w+):\s+(\d+) kB$", _read(root / "proc/meminfo") or "", re.MULTILINE)
    return {name: int(kib) * 1024 for name, kib in found}


# Files: where a process's cgroup folders are.


def _read(path: Path) -> str | None:
    """Return a small file's stripped text; None where it is absent or closed to us, which is no limit we could know."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _cgroups(root: Path, controller: str | None) -> Iterator[Path]:
    """Yield the process's own cgroup folder, then each ancestor up to the mount; `controller` None means cgroup v2.

    In a container /proc/self/cgroup may name a path of the host that isn't mounted; its folders are simply absent.
    """
    own = _own_cgroup(root, controller)
    for mount, mounted in _mounts(root, controller):
        inside = own[len(mounted) :] if mounted != "/" and f"{own}/".startswith(f"{mounted}/") else own
        # A process outside its cgroup namespace's root is shown as "/../..": nothing above the mount can be read.
        parts = [part for part in inside.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            yield root.joinpath(mount.lstrip("/"), *parts[:depth])


def _own_cgroup(root: Path, controller: str | None) -> str:
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if (number == "0" and not names) if controller is None else controller in names.split(","):
            return path
    return "/"


def _mounts(root: Path, controller: str | None) -> list[tuple[str, str]]:
    """Return (mount point, cgroup path mounted there), from mountinfo, else the usual places; see proc(5)."""
    found = []
    for line in (_read(root / "proc/self/mountinfo") or "").splitlines():
        head, _, tail = line.partition(" - ")
        left, right = head.split(), tail.split()
        if len(left) < 5 or len(right) < 3 or right[0] != ("cgroup2" if controller is None else "cgroup"):
            continue
        if controller is None or controller in right[2].split(","):
            found.append((_unescaped(left[4]), _unescaped(left[3])))
    return found or [(place, "/") for place in _usual_mounts(controller)]


def _usual_mounts(controller: str | None) -> tuple[str, ...]:
    if controller is None:
        return ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
    joined = ("/sys/fs/cgroup/cpu,cpuacct",) if controller == "cpu" else ()
    return (f"/sys/fs/cgroup/{controller}", *joined)


def _unescaped(text: str) -> str:
    """Return a mountinfo field with its octal escapes undone; systemd's own names hold backslashes.

    >>> _unescaped(r"/a\\134x2db")
    '/a\\\\x2db'
    """
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _shown(root: Path, path: Path) -> str:
    return f"/{path.relative_to(root).as_posix()}"


# Words for reports.


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


def _cpu_model(root: Path) -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", _read(root / "proc/cpuinfo") or "", re.MULTILINE)
    return match[1] if match else platform.processor() or platform.machine() or "unknown"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
