"""What the tuner tries, what it is tried on, and what came of it: frozen data and two Protocols."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from fastload.errors import SettingsError

__all__ = ["SCHEMA", "Advice", "Bound", "Result", "Run", "Setting", "Trial", "Workload"]

SCHEMA = 1  # of Result.to_dict(), and so of the JSON file
STATUSES = ("ok", "refused", "failed", "wrong", "invalid")


@dataclass(frozen=True)
class Setting:
    """One way to run a loader.

    threads: decoding threads; num_workers where the pipeline is left to stock (`stock`). prefetch_factor: finished batches
    that may wait. batch_size: None keeps the loader's. cache: folder of a cache, or None.
    """

    threads: int
    prefetch_factor: int
    batch_size: int | None = None
    pin_memory: bool = False
    executor: str = "auto"
    cache: str | None = None
    stock: bool = False

    def __post_init__(self) -> None:
        least = 0 if self.stock else 1
        if self.threads < least or self.prefetch_factor < 1 or (self.batch_size is not None and self.batch_size < 1):
            raise SettingsError(
                f"threads must be at least {least}, prefetch_factor and batch_size at least 1; found {self.threads!r}, "
                f"{self.prefetch_factor!r}, {self.batch_size!r}"
            )


class Run(Protocol):
    """A workload under way with one setting. `fetch` goes on with a new epoch where one ends."""

    def fetch(self) -> Any:
        """Wait for the next finished batch, [B, ...] on the device."""
        ...

    def step(self, batch: Any) -> None:
        """What the consumer does with a batch, real or emulated; returns when the training loop would ask for the next one."""
        ...

    def counts(self) -> dict[str, tuple[int, int]]:
        """Per stage since it was opened: (images, nanoseconds summed over threads)."""
        ...


class Workload(Protocol):
    """What is tuned: a loader and its consumer, real (a Learner) or planted (a test)."""

    name: str
    setting: Setting  # the user's own
    batch_size: int
    items: int  # in an epoch
    image_bytes: int  # of one image's row in a finished batch

    def open(self, setting: Setting) -> AbstractContextManager[Run]:
        """Begin with a fresh queue; leaving the context ends threads and drops buffers."""
        ...


@dataclass(frozen=True)
class Trial:
    """What is known of one setting, measured or predicted.

    images_per_s: median of blocks, with `low` and `high` its 95 % interval. step_s: median seconds from batch to batch.
    wait: share of the step spent waiting for data. au: accelerator utilisation, floor step / step. cpus: kept busy on average.
    """

    setting: Setting
    how: str  # measured | predicted
    status: str = "ok"
    images_per_s: float = 0.0
    low: float = 0.0
    high: float = 0.0
    step_s: float = 0.0
    wait: float = 0.0
    au: float | None = None
    cpus: float | None = None
    ram_bytes: int | None = None
    shm_bytes: int | None = None
    device_bytes: int | None = None
    blocks: tuple[float, ...] = ()  # images/s of each block, raw
    stages: Mapping[str, float] = field(default_factory=dict)  # seconds per image
    note: str = ""

    def __post_init__(self) -> None:
        if self.status not in STATUSES or self.how not in ("measured", "predicted"):
            raise SettingsError(f"a Trial is {', '.join(STATUSES)}, measured or predicted; found {self.status!r}, {self.how!r}")


@dataclass(frozen=True)
class Bound:
    """The most images/s that one resource allows: `name` is cpu, threads, main thread, copy, storage or device."""

    name: str
    images_per_s: float
    note: str = ""


@dataclass(frozen=True)
class Advice:
    """What would help beyond the knobs: the cause, the fix as a line to type, the predicted gain (1.5: half as fast again)."""

    cause: str
    fix: str
    gain: float | None = None


@dataclass(frozen=True)
class Result:
    """What tuning found. `choice` is one of `trials`; `bounds` ascend, the first is the bottleneck; seconds and runs as spent.

    floor_s: seconds of a training step whose batch costs nothing. noise: spread of the same setting against itself, a share.
    verdict, stop: a sentence each. memory: (batch size, device bytes, measured or predicted). lines: to type, to apply it.
    """

    workload: str
    batch_size: int
    machine: Mapping[str, str]
    floor_s: float
    baseline: Trial
    choice: Trial
    trials: tuple[Trial, ...]
    bounds: tuple[Bound, ...]
    verdict: str
    stop: str
    noise: float
    runs: int
    seconds: float
    tier: str = "AU"  # how utilisation was measured
    advice: tuple[Advice, ...] = ()
    notes: tuple[str, ...] = ()
    memory: tuple[tuple[int, int, str], ...] = ()
    memory_limit: int | None = None
    lines: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON values, with the version of their schema."""
        return {"schema": SCHEMA, **asdict(self)}
