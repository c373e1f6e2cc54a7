"""The import swap: `from fastload.vision import *` gives the names of `fastai.vision.all`, with loaders that fastload runs."""

from collections.abc import Iterator as _Iterator
from contextlib import ExitStack as _ExitStack
from contextlib import contextmanager as _contextmanager
from types import MethodType as _MethodType
from typing import Any as _Any

from fastai.vision.all import *
from fastai.vision.all import DataBlock as _DataBlock
from fastai.vision.all import ImageDataLoaders as _ImageDataLoaders
from fastai.vision.all import SegmentationDataLoaders as _SegmentationDataLoaders
from fastai.vision.all import TfmdDL as _TfmdDL

from fastload.machine import switched_off as _switched_off
from fastload.settings import Settings as _Settings
from fastload.settings import split_keywords as _split_keywords
from fastload.wrap import accelerated as _accelerated
from fastload.wrap import attach as _attach


def _typed(dl_type: _Any, keywords: dict[str, _Any]) -> dict[str, _Any]:
    """The keywords with the accelerated twin of `dl_type`; pure stock under FASTLOAD=off."""
    return {**keywords, "dl_type": dl_type if _switched_off() else _accelerated(dl_type)}


@_contextmanager
def _listed(cache: _Any, dblock: _Any) -> _Iterator[None]:
    """While this lasts the block lists what a cache was made of where the files are gone."""
    from fastload.feeding import listing

    before = getattr(dblock, "get_items", None)
    if cache is None or before is None or _switched_off():
        yield
        return
    with _ExitStack() as stack:
        dblock.get_items = listing(before, cache, stack)
        stack.callback(setattr, dblock, "get_items", before)
        yield


class _Swapped:
    """Asks fastai's own factories for accelerated loaders, by the `dl_type` they accept anyway."""

    def __init_subclass__(cls, **kwargs: _Any) -> None:
        """Bind to `cls` the factories that fastai keeps bound to its own class (`from_name_func`, `from_csv` and others)."""
        super().__init_subclass__(**kwargs)
        for base in cls.__mro__[1:]:
            for name, value in vars(base).items():
                if isinstance(value, _MethodType) and value.__self__ is base and name not in vars(cls):
                    setattr(cls, name, classmethod(value.__func__))

    @classmethod
    def from_dblock(cls, dblock: _Any, *args: _Any, dl_type: _Any = None, **kwargs: _Any) -> _Any:
        chosen = dl_type or getattr(dblock, "dl_type", None) or _TfmdDL
        with _listed(kwargs.get("cache"), dblock):
            return super().from_dblock(dblock, *args, **_typed(chosen, kwargs))  # type: ignore[misc]  # fastai's class comes next

    @classmethod
    def from_dsets(cls, *ds: _Any, dl_type: _Any = None, **kwargs: _Any) -> _Any:
        return super().from_dsets(*ds, **_typed(dl_type or _TfmdDL, kwargs))  # type: ignore[misc]


class ImageDataLoaders(_Swapped, _ImageDataLoaders):  # type: ignore[misc]  # fastai has no types
    __doc__ = _ImageDataLoaders.__doc__


class SegmentationDataLoaders(_Swapped, _SegmentationDataLoaders):  # type: ignore[misc]
    __doc__ = _SegmentationDataLoaders.__doc__


class DataBlock(_DataBlock):  # type: ignore[misc]
    __doc__ = _DataBlock.__doc__

    def dataloaders(self, *args: _Any, dl_type: _Any = None, **kwargs: _Any) -> _Any:
        """fastai's `dataloaders`, with accelerated loaders."""
        with _listed(kwargs.get("cache"), self):
            return super().dataloaders(*args, **_typed(dl_type or self.dl_type, kwargs))

    def weighted_dataloaders(self, *args: _Any, **kwargs: _Any) -> _Any:
        """fastai's `weighted_dataloaders`, accelerated."""
        ours, rest = _split_keywords(kwargs)
        dls = super().weighted_dataloaders(*args, **rest)
        for dl in () if _switched_off() else dls.loaders:
            _attach(dl, _Settings().updated(ours))
        return dls
