"""Which files a fastai loader will open, and under which label, as its own getters give them; nothing is decoded here.

Where fastload doesn't recognise how a loader opens its images, items that are themselves paths of image files stand in.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from typing import Any

from fastload.bridge import Refused, compile_loader, image_class
from fastload.inspecting import Finding, Use, found
from fastload.loader import inner_loader
from fastload.ops import Size
from fastload.targets import Unplanned, path_reader

__all__ = ["Listing", "list_files"]

_REASONS = 3  # reasons told why a loader isn't recognised; `fastload explain` has all


@dataclass(frozen=True)
class Listing:
    """One loader's files in item order with their use; items per class; classes that stock can't encode, with one path each."""

    split: str
    files: tuple[tuple[str, Use], ...] = ()
    classes: Mapping[str, int] = field(default_factory=dict)
    unknown: Mapping[str, str | None] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Reader:
    """One image of each item: `path` from item number to path (raises Unplanned where it is none), and how it is opened."""

    path: Callable[[int], str]
    mode: str = "RGB"
    mask: bool = False


@dataclass(frozen=True)
class _Labels:
    """`read` from item number to the item's classes; `known` says whether stock can encode one."""

    read: Callable[[int], tuple[Any, ...]]
    known: Callable[[Any], bool]


@dataclass
class _Draft:
    """What gathers while the items of one loader are gone through, in one thread."""

    files: list[tuple[str, Use]] = field(default_factory=list)
    classes: Counter[str] = field(default_factory=Counter)
    unknown: dict[str, str | None] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    no_path: Counter[str] = field(default_factory=Counter)


def list_files(dl: Any, split: str) -> Listing:
    """The files of one loader. Getters run once per item, in order, in this thread; one that raises becomes a Finding."""
    inner = inner_loader(dl)
    dataset, compiled = inner.dataset, compile_loader(inner)
    refused = compiled.reasons if isinstance(compiled, Refused) else ()
    size = None if isinstance(compiled, Refused) else _target(compiled.plan.size, inner.after_batch)
    known, labels, draft = _image_readers(dataset), _labels(dataset), _Draft()
    readers = known or (_Reader(_raw_paths(dataset)),)
    for index in range(_length(dataset)):
        _add(draft, index, split, size, readers, labels)
    notes = _notes(split, refused, bool(known), draft, labels is not None)
    classes = dict(sorted(draft.classes.items()))
    return Listing(split, tuple(draft.files), classes, draft.unknown, tuple(draft.findings), notes)


def _add(draft: _Draft, index: int, split: str, size: Size | None, readers: Any, labels: _Labels | None) -> None:
    """One item: its label first, then the path of each of its images."""
    classes: tuple[Any, ...] = ()
    try:
        classes = labels.read(index) if labels is not None else ()
    except Exception as err:  # noqa: BLE001  # a user's getter may raise anything; stock would meet the same error
        draft.findings.append(_getter_failed(err, "label", index, split))
    names = tuple(map(str, classes))
    label = ", ".join(names) if labels is not None else None
    path = None
    for reader in readers:
        use = Use(split, label, reader.mode, reader.mask, size)
        path = _add_path(draft, index, reader, use) or path
    draft.classes.update(names)
    if labels is not None:
        draft.unknown |= {str(c): path for c in classes if not labels.known(c) and str(c) not in draft.unknown}


def _add_path(draft: _Draft, index: int, reader: _Reader, use: Use) -> str | None:
    try:
        path = reader.path(index)
    except Unplanned as no_path:
        draft.no_path[str(no_path)] += 1
        return None
    except Exception as err:  # noqa: BLE001  # as above
        draft.findings.append(_getter_failed(err, "path", index, use.split))
        return None
    draft.files.append((path, use))
    return path


def _getter_failed(err: Exception, what: str, index: int, split: str) -> Finding:
    name = type(err).__name__
    text = f"the {what} of item {index} can't be had: {name}: {' '.join(str(err).split())}"
    stock = f"raises {name} when the item is reached; the epoch ends there"
    return found((f"no {what}", "broken", text, stock), None, (Use(split),))


def _notes(split: str, refused: tuple[str, ...], known: bool, draft: _Draft, labelled: bool) -> tuple[str, ...]:
    notes = [f"{split}: {count} images not checked: {why}" for why, count in draft.no_path.items()]
    if refused:
        reasons = "; ".join(refused[:_REASONS])
        how = "opened as fastai opens them" if known else "items that are paths were opened in mode RGB, which may not be yours"
        notes.append(f"{split}: the pipeline is not recognised ({reasons}); {how}; the size of its images is unknown")
    if not draft.files:
        notes.append(f"{split}: no path of an image was found among its items, so no file was checked")
    if not labelled:
        notes.append(f"{split}: it has no classes that fastload can read, so labels were not checked")
    return tuple(notes)


def _target(size: Size | None, after_batch: Any) -> Size | None:
    """(width, height) in the finished batch: that of the items, unless a batch transform has its own (height, width)."""
    for tfm in after_batch.fs:
        own = getattr(tfm, "size", None)
        if isinstance(own, int):
            size = (own, own)
        elif isinstance(own, tuple) and len(own) == 2 and all(isinstance(side, int) for side in own):
            size = (own[1], own[0])
    return size


def _length(dataset: Any) -> int:
    """Number of items; 0 for a data set that can only be iterated, or none."""
    return len(dataset) if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__") else 0


def _lists(dataset: Any) -> list[Any]:
    """The TfmdLists of a fastai Datasets, one for each part of an item; of anything else none."""
    from fastai.data.core import Datasets, TfmdLists

    tls = list(dataset.tls) if isinstance(dataset, Datasets) else []
    return [tl for tl in tls if isinstance(tl, TfmdLists) and len(tl.tfms.fs)]


def _image_readers(dataset: Any) -> tuple[_Reader, ...]:
    """A reader for each part of an item that is an image which fastai's own `create` opens."""
    images = [(tl, cls) for tl in _lists(dataset) if (cls := image_class(tl)) is not None]
    return tuple(
        _Reader(path_reader(tl), "RGB" if cls.__name__ == "PILImage" else "L", cls.__name__ == "PILMask") for tl, cls in images
    )


def _raw_paths(dataset: Any) -> Callable[[int], str]:
    """A function from item number to the item, or its first part, where that is an image's path; Unplanned where it isn't."""
    from fastai.data.transforms import image_extensions

    items, name = _raw_items(dataset), type(dataset).__name__

    def read(index: int) -> str:
        item = None if items is None else items[index]
        first = item[0] if isinstance(item, tuple | list) and item else item
        if isinstance(first, str | PurePath) and os.path.splitext(first)[1].lower() in image_extensions:
            return os.fspath(first)
        raise Unplanned(f"an item of this {name} is not the path of an image")

    return read


def _raw_items(dataset: Any) -> Any:
    """The list behind a data set (torchvision's is `samples`), or None: asking the data set itself might open the images."""
    import numpy as np
    from fastcore.foundation import L

    behind = (dataset, getattr(dataset, "items", None), getattr(dataset, "samples", None))
    return next((items for items in behind if type(items) in (list, tuple, L, np.ndarray)), None)


def _labels(dataset: Any) -> _Labels | None:
    """The first part of an item that fastai encodes as a category, or several."""
    from fastai.data.transforms import Categorize, MultiCategorize

    for tl in _lists(dataset):
        for place, tfm in enumerate(tl.tfms.fs):
            if type(tfm) in (Categorize, MultiCategorize):
                return _Labels(partial(_classes, _before(tl, place), type(tfm) is MultiCategorize), partial(_encodes, tfm))
    return None


def _classes(read: Callable[[int], Any], many: bool, index: int) -> tuple[Any, ...]:
    value = read(index)
    return tuple(value) if many else (value,)


def _encodes(encoder: Any, label: Any) -> bool:
    vocab = encoder.vocab
    return vocab is None or bool(getattr(encoder, "add_na", False)) or label in vocab.o2i


def _before(tl: Any, place: int) -> Callable[[int], Any]:
    """A function from item number to what the list's transform at `place` is given, made by fastai's own calls."""
    from fastcore.foundation import L

    items, getters = L(tl.items, use_list=None), list(tl.tfms.fs)[:place]

    def read(index: int) -> Any:
        value = items[index]
        for getter in getters:
            value = getter(value, split_idx=tl.tfms.split_idx)
        return value

    return read
