"""The three calls a user makes: accelerate a loader, enable fastload for a whole script, explain what runs where."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from fastload.errors import DataError
from fastload.explaining import explain_loader
from fastload.intercept import enabled, install
from fastload.loader import inner_loader
from fastload.report import Report
from fastload.settings import Settings
from fastload.wrap import attach

__all__ = ["accelerate", "enable", "explain"]


def accelerate(target: Any, **settings: Any) -> Any:
    """Let fastload run a DataLoaders, a single fastai loader, or a Learner's `dls`; returns the same object.

    Keywords are those of `fastload.settings.Settings`, for instance `threads=4` or `bad_images="skip"`. Batches, labels and
    random-number states stay stock's. Raises DataError for anything that is not a fastai loader, SettingsError for keywords.
    """
    chosen = Settings().updated(settings)
    for dl in _loaders(target):
        attach(inner_loader(dl), chosen)
    return target


def enable(**settings: Any) -> AbstractContextManager[None]:
    """Let fastload run every fastai loader of this process: `with fastload.enable(): ...`, or call it once and keep it.

    Without `with`, it stays on until the process ends.
    """
    return _Enabled(Settings().updated(settings))


class _Enabled(AbstractContextManager[None]):
    """On from the moment it is made; leaving a `with` block turns it off again."""

    def __init__(self, settings: Settings) -> None:
        install()
        self._open: AbstractContextManager[None] | None = enabled(settings)
        self._open.__enter__()

    def __exit__(self, *exc: Any) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            opened.__exit__(None, None, None)


def explain(target: Any) -> Report:
    """What runs where, transform by transform, and why anything stays with stock; printable, with `to_json()`."""
    rows = [explain_loader(dl, name) for name, dl in zip(_names(), _loaders(target), strict=False)]
    return Report("what runs where", tuple(rows))


def _names() -> list[str]:
    return ["train", "valid", *(f"loader {k}" for k in range(2, 100))]


def _loaders(target: Any) -> list[Any]:
    """The fastai loaders of a Learner, a DataLoaders or a single loader."""
    dls = getattr(target, "dls", target)
    loaders = list(dls.loaders) if isinstance(getattr(dls, "loaders", None), list) else [dls]
    for dl in loaders:
        if not hasattr(inner_loader(dl), "fake_l"):
            raise DataError(f"expected a fastai DataLoaders, DataLoader or Learner, found {type(target).__name__}")
    return loaders
