"""What fastload keeps beside one fastai loader: settings, what was reported, and the place in its epoch."""

from __future__ import annotations

import logging
import weakref
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fastload.draws import Drawer
from fastload.executors._pool import Pool
from fastload.generators import Generators
from fastload.settings import Settings

__all__ = ["Attached", "Loaded", "Order", "Progress", "Resume"]

log = logging.getLogger("fastload")


@dataclass(frozen=True)
class Resume:
    """A saved place in an epoch: what the next iterator needs to go on from there. `words` None: stock made its batches.

    `rng`: the loader's own generator as it was saved, which the epochs after this one go on from.
    """

    done: int
    samples: int
    words: list[int] | None
    seed_state: bytes
    indices: str
    generators: Generators
    rng: Any


@dataclass(frozen=True)
class Order:
    """What chose the epoch's indices: the loader's own generator and the global ones, before `randomize`."""

    rng: Any
    generators: Generators


@dataclass(frozen=True)
class Loaded:
    """A state to go on from; `resume` is None where it lies between two epochs."""

    order: Order
    resume: Resume | None


@dataclass
class Progress:
    """Where the epoch stands: `done` batches and `samples` indices handed over, and what is needed to go on from there.

    `seed_state`: torch's CPU generator before it drew the base seed. `resume`: a saved state, taken up by the next iterator.
    """

    done: int = 0
    samples: int = 0
    ended: bool = False
    seed_state: bytes | None = None
    indices: Any = None
    drawer: Drawer | None = None
    resume: Resume | None = None
    counts: Callable[[], dict[str, tuple[int, int]]] = dict

    def digest(self) -> str:
        """Eight hex digits of the epoch's indices; empty where they are an endless iterator."""
        return f"{zlib.crc32(repr(self.indices).encode()):08x}" if isinstance(self.indices, list) else ""


@dataclass
class Attached:
    """What fastload keeps beside one loader. `told` is shared by loaders made from it by `new`.

    `told`: lines already logged, keywords already warned of. `skipped`: path -> error of images left out. `single`: only one
    batch is wanted.
    `stays`: why the loader last went to stock in the middle of an epoch.
    """

    settings: Settings = field(default_factory=Settings)
    told: set[str] = field(default_factory=set)
    skipped: dict[str, str] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
    pool: Pool | None = None
    single: bool = False
    guesses: bool = False
    most_workers: int = 0
    stays: str | None = None
    order: Order | None = None
    loaded: Loaded | None = None

    def child(self, changes: dict[str, Any]) -> Attached:
        """For a loader made by `new`: the same settings and memory of what was reported, its own progress."""
        return Attached(self.settings.updated(changes), self.told)

    def only_one(self, fake_l: Any) -> bool:
        """Whether one batch is wanted: `one_batch` says so; a stock one (`guesses`) takes the workers away for a moment."""
        self.most_workers = max(self.most_workers, fake_l.num_workers)
        return self.single or (self.guesses and self.most_workers > 0 and fake_l.num_workers == 0)

    def kept_pool(self, threads: int, init: Callable[[int], None] | None) -> Pool:
        """Threads that outlive epochs (persistent_workers=True); they end with the loader."""
        if self.pool is not None and self.pool.threads != threads:
            self.pool.close()
        if self.pool is None or not self.pool.alive:
            self.pool = Pool(threads, init)
            weakref.finalize(self, self.pool.close)
        return self.pool

    def tell(self, reason: str) -> None:
        """Report once that a loader stays with stock, and why."""
        self.say(f"this loader stays with stock fastai: {reason}")

    def say(self, text: str) -> None:
        """Log a line once."""
        if text not in self.told:
            self.told.add(text)
            log.warning("%s", text)
