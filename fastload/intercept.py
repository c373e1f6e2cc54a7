"""The one place where fastload touches fastai: the table from which a loader's `__iter__` takes its iterator.

fastai's DataLoader.__iter__ gets batches from `fastai.data.load._loaders[...]` alone, so a loader that fastload runs stays
fastai's own in everything else (len, new, pickling, DDP wrapping, and after_batch unless batch='fused' is chosen). The table is
exchanged when the first loader is accelerated, never at import; for every loader that fastload was not asked to run it gives
stock's iterator.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from fastload import machine
from fastload.attached import Attached
from fastload.loader import inner_loader, iterate
from fastload.settings import Settings

__all__ = ["attached_to", "install", "switch_off", "switch_on"]


class _Everywhere:
    """Loaders taken over by `enable()`: what is attached to each, and the settings of each open `enable()`."""

    def __init__(self) -> None:
        self.stack: list[Settings] = []
        self.known: weakref.WeakKeyDictionary[Any, Attached] = weakref.WeakKeyDictionary()

    def get(self, dl: Any) -> Attached | None:
        """What is attached to a loader while `enable()` is open, else None."""
        if not self.stack:
            return None
        attached, settings = self.known.get(dl), self.stack[-1]
        if attached is None:
            attached = self.known[dl] = Attached(settings, guesses=True)
        elif attached.settings is not settings:
            attached = self.known[dl] = Attached(settings, attached.told, guesses=True)
        return attached


_EVERYWHERE = _Everywhere()


class _Table:
    """Stands in for fastai's pair (several processes, one process); `stock` is the pair itself."""

    def __init__(self, stock: Any) -> None:
        self.stock = stock

    def __getitem__(self, single: Any) -> Any:
        return lambda fake_l: _iterator(fake_l, self.stock[single], self.stock)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.stock)

    def __len__(self) -> int:
        return len(self.stock)


def _iterator(fake_l: Any, chosen: Any, stock: Any) -> Any:
    attached = attached_to(inner_loader(fake_l.d))
    if attached is None or machine.switched_off() or not _usual(fake_l):
        return chosen(fake_l)
    return iterate(fake_l, attached, lambda loader: stock[loader.num_workers == 0](loader))


def _usual(fake_l: Any) -> bool:
    """Whether workers and timeout are numbers that make sense; stock says what is wrong with others, where it minds."""
    workers, timeout = fake_l.num_workers, fake_l.timeout
    return isinstance(workers, int) and workers >= 0 and isinstance(timeout, int | float) and timeout >= 0


def attached_to(dl: Any) -> Attached | None:
    """What fastload keeps beside a loader, or None if it was not asked to run it."""
    own = getattr(type(dl), "_fastload_of", None)
    return own(dl) if own is not None else _EVERYWHERE.get(dl)


def install() -> None:
    """Put the table in place, once."""
    from fastai.data import load

    if not isinstance(load._loaders, _Table):
        load._loaders = _Table(load._loaders)


def switch_on(settings: Settings) -> None:
    """Run every fastai loader of this process by fastload, until `switch_off` is called with the same object."""
    install()
    _EVERYWHERE.stack.append(settings)


def switch_off(settings: Settings) -> None:
    """Take back one `switch_on`; whatever else is on stays on."""
    _EVERYWHERE.stack[:] = [entry for entry in _EVERYWHERE.stack if entry is not settings]
