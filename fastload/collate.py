"""A finished batch and its targets, put together as stock's do_batch gives them: types, metadata, padding of boxes."""

from __future__ import annotations

from typing import Any

import torch

from fastload.bridge import Compiled, pixel_class
from fastload.executors import Finished
from fastload.targets import follow

__all__ = ["assemble"]


def assemble(dl: Any, compiled: Compiled, finished: Finished) -> Any:
    """A batch as stock's do_batch gives it: before_batch, collate, retain; image tensors are put in, not copied."""
    if (quick := _plainly(dl, compiled, finished)) is not None:
        return quick
    classes = [pixel_class(cls) for _, cls in compiled.images]
    whole = compiled.plan.size is not None
    columns = _target_columns(compiled, finished)
    places = [e.position for e in compiled.plan.elements]
    width = len(places) + len(compiled.targets)
    stand_ins = [torch.empty(0, dtype=torch.uint8).as_subclass(cls) for cls in classes]
    samples = []
    for row in range(len(finished.kept)):
        parts: list[Any] = [None] * width
        for k, place in enumerate(places):
            parts[place] = stand_ins[k] if whole else torch.from_numpy(finished.images[k][row]).as_subclass(classes[k])
        for place, column in zip(compiled.targets, columns, strict=True):
            parts[place] = column[row]
        samples.append(tuple(parts))
    padded = dl.before_batch(samples)
    collated = dl.create_batch(padded)
    if whole:
        parts = list(collated)
        for k, place in enumerate(places):
            parts[place] = finished.images[k].as_subclass(classes[k])
        collated = type(collated)(parts)
    return dl.retain(collated, samples)


def _plainly(dl: Any, compiled: Compiled, finished: Finished) -> Any:
    """The same where nobody looks at the samples before they are collated, so that images need no stand-ins; else None."""
    from fastai.data.load import DataLoader, fa_collate

    unseen = "before_batch" in vars(dl) and not len(getattr(dl.before_batch, "fs", (None,)))
    usual = all(
        getattr(getattr(dl, name), "__func__", None) is getattr(DataLoader, name) for name in ("create_batch", "retain")
    )
    if not unseen or not usual or dl.prebatched or compiled.plan.size is None:
        return None
    parts: list[Any] = [None] * (len(compiled.images) + len(compiled.targets))
    first: list[Any] = list(parts)
    for element, images, (_, cls) in zip(compiled.plan.elements, finished.images, compiled.images, strict=True):
        first[element.position] = parts[element.position] = images.as_subclass(pixel_class(cls))
    for place, column in zip(compiled.targets, _target_columns(compiled, finished), strict=True):
        first[place] = column[0]
        try:
            parts[place] = fa_collate(tuple(column))
        except Exception:  # noqa: BLE001  torch raises anything; the usual way meets it again, and says it in stock's words
            return None
    return dl.retain(tuple(parts), [tuple(first)])


def _target_columns(compiled: Compiled, finished: Finished) -> list[list[Any]]:
    columns = []
    for k, place in enumerate(compiled.targets):
        column = [finished.batch.carry.targets[p][k] for p in finished.kept]
        if place in compiled.plan.spatial:
            rows = zip(column, finished.drawn, finished.sizes, strict=True)
            column = [follow(compiled, place, value, drawn, sizes) for value, drawn, sizes in rows]
        columns.append(column)
    return columns
