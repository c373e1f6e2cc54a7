"""What a user calls: accelerate a loader, enable fastload for a whole script, explain what runs where, read the counters."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from fastload.errors import DataError
from fastload.explaining import explain_loader
from fastload.intercept import attached_to, switch_off, switch_on
from fastload.loader import inner_loader
from fastload.machine import switched_off
from fastload.report import Report
from fastload.settings import ON_LOADERS, Settings
from fastload.wrap import attach

__all__ = ["accelerate", "counters", "enable", "explain"]


def accelerate(target: Any, **settings: Any) -> Any:
    """Let fastload run a DataLoaders, a single fastai loader, or a Learner's `dls`; returns the same object.

    Keywords are those of `fastload.settings.Settings`, for instance `threads=4` or `bad_images="skip"`, and fastai's own
    num_workers, pin_memory, timeout and persistent_workers, which are set on the loaders. Batches, labels and random-number
    states stay stock's. Under FASTLOAD=off nothing happens. Raises DataError for anything that is not a fastai loader,
    SettingsError for keywords.
    """
    fastais = {name: settings.pop(name) for name in ON_LOADERS if name in settings}
    chosen = Settings().updated(settings)
    for dl in _loaders(target):
        if not switched_off():
            attach(inner_loader(dl), chosen)
        for name, value in fastais.items():
            setattr(dl.fake_l, name, value)
            if name in ("pin_memory", "timeout"):
                setattr(dl, name, value)
    return target


def counters(target: Any) -> list[dict[str, Any]]:
    """For each loader: per stage of its present or last epoch (images, nanoseconds summed over threads), and skipped images.

    `{"stages": {"read": (n, ns), ...}, "skipped": {path: error}}`; empty for a loader that fastload does not run.
    """
    found = [attached_to(inner_loader(dl)) for dl in _loaders(target)]
    return [{} if a is None else {"stages": a.progress.counts(), "skipped": dict(a.skipped)} for a in found]


def enable(**settings: Any) -> AbstractContextManager[None]:
    """Let fastload run every fastai loader of this process: `with fastload.enable(): ...`, or call it once and keep it.

    Without `with`, it stays on until the process ends.
    """
    return _Enabled(Settings().updated(settings))


class _Enabled(AbstractContextManager[None]):
    """On from the moment it is made, whether or not it is kept; leaving a `with` block turns it off again."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        switch_on(settings)

    def __exit__(self, *exc: object) -> None:
        switch_off(self._settings)


def explain(target: Any) -> Report:
    """What runs where, transform by transform, and why anything stays with stock: to be printed, or taken by `to_json()`."""
    loaders = _loaders(target)
    rows = [explain_loader(dl, _name(dl, k, len(loaders))) for k, dl in enumerate(loaders)]
    return Report("what runs where", tuple(rows))


def _name(dl: Any, position: int, count: int) -> str:
    """train, valid, or the loader's number; a loader that stands alone is called after its data's split."""
    if count == 1:
        position = getattr(getattr(inner_loader(dl), "dataset", None), "split_idx", 2)
        return {0: "train", 1: "valid"}.get(position, "loader")
    return {0: "train", 1: "valid"}.get(position, f"loader {position}")


def _loaders(target: Any) -> list[Any]:
    """The fastai loaders of a Learner, a DataLoaders or a single loader."""
    dls = getattr(target, "dls", target)
    loaders = list(dls.loaders) if isinstance(getattr(dls, "loaders", None), list) else [dls]
    for dl in loaders:
        if not hasattr(inner_loader(dl), "fake_l"):
            raise DataError(f"expected a fastai DataLoaders, DataLoader or Learner, found {type(target).__name__}")
    return loaders
