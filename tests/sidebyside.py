"""Stock fastai and fastload side by side: loaders built twice from one seed, everything that can be seen compared."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from fastai.data import load
from fastai.data.load import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

import fastload
from fastload import native
from fastload.testing import assert_same_batches

SERIAL: dict[str, Any] = {"executor": "serial"}
ONE_THREAD: dict[str, Any] = {"executor": "threads", "threads": 1}
THREE_THREADS: dict[str, Any] = {"executor": "threads", "threads": 3}
NATIVE: dict[str, Any] = {"executor": "native", "threads": 2}
WAYS = (SERIAL, NATIVE if native.status().resizes else ONE_THREAD, THREE_THREADS)
# Stock's workers take ten seconds to end after an error, once its iterator is collected: not before the interpreter ends.
_HELD: list[Exception] = []


@dataclass
class Seen:
    """What iterating a loader showed: batches and generator states of each epoch, and the error that ended it."""

    batches: list[list[Any]] = field(default_factory=list)
    states: list[tuple[Any, ...]] = field(default_factory=list)
    error: Exception | None = None


def seed_all(seed: int) -> None:
    """Seed every global generator."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def generator_states(dl: Any = None) -> tuple[Any, ...]:
    """Python's, numpy's and torch's generator, and the loader's own, as values that compare."""
    _, keys, *rest = np.random.get_state()
    own = None if dl is None else dl.rng.getstate()
    return random.getstate(), keys.tobytes(), *rest, torch.get_rng_state().numpy().tobytes(), own


def one_epoch(dl: Any) -> Iterator[Any]:
    """The batches of one epoch: what `watch` does unless told otherwise."""
    yield from dl


def watch(dl: Any, epochs: int = 2, visit: Callable[[Any], Iterator[Any]] = one_epoch, seed: int = 7) -> Seen:
    """Iterate `epochs` times; `visit` may consume the loader in its own way. Batches are kept, not copied."""
    seen = Seen()
    seed_all(seed)
    for _ in range(epochs):
        batches: list[Any] = []
        seen.batches.append(batches)
        try:
            batches.extend(visit(dl))
        except Exception as err:  # noqa: BLE001  # handed to the test, which compares it
            seen.error = err
            _HELD.append(err)
        seen.states.append(generator_states(dl))
    return seen


@contextmanager
def stock_only() -> Iterator[None]:
    """fastai's own table of iterators is in place, as if fastload had never been imported."""
    before = load._loaders
    load._loaders = (_MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter)
    try:
        yield
    finally:
        load._loaders = before


def _keep(lines: list[str], text: str) -> None:
    if "gives no batch" not in text:  # said of every loader that is smaller than a batch, which is no reason for anything
        lines.append(text)


@contextmanager
def warned() -> Iterator[list[str]]:
    """What fastload logs meanwhile."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: _keep(lines, record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("fastload")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def built(make: Callable[[], Any], which: int | None = None) -> Any:
    """What `make` gives under a fixed seed; the loader `which` of it, if it is a DataLoaders."""
    seed_all(3)
    made = make()
    return made if which is None else made.loaders[which]


def stock_run(make: Callable[[], Any], which: int = 0, **how: Any) -> Seen:
    """Stock's own run."""
    with stock_only():
        return watch(built(make, which), **how)


def fast_run(make: Callable[[], Any], which: int = 0, stays: str | None = None, way: Any = SERIAL, **how: Any) -> Seen:
    """fastload's run. `stays`: part of the one line that says why it went to stock; None if everything must be fastload's."""
    stages: Counter[str] = Counter()
    dl = built(make, which)
    fastload.accelerate(dl, **way, hook=lambda stage, *_: stages.update([stage]))
    with warned() as lines:
        seen = watch(dl, **how)
    if stays is None:
        assert [] == lines
        assert stages["transform"] + stages["native"] > 0 or seen.error is not None
    else:
        assert 1 == len(lines) and stays in lines[0], lines
    return seen


def assert_same_run(expected: Seen, actual: Seen) -> None:
    """Batches, generator states after each epoch and the kind of error are equal."""
    if expected.error is None and actual.error is not None:
        raise actual.error
    assert type(expected.error) is type(actual.error)
    assert len(expected.batches) == len(actual.batches)
    for wanted, found in zip(expected.batches, actual.batches, strict=True):
        assert_same_batches(wanted, found)
    for epoch, (wanted, found) in enumerate(zip(expected.states, actual.states, strict=True)):
        assert wanted[0] == found[0], f"random differs after epoch {epoch}"
        assert wanted[1:-2] == found[1:-2], f"numpy's generator differs after epoch {epoch}"
        assert wanted[-2] == found[-2], f"torch's generator differs after epoch {epoch}"
        assert wanted[-1] == found[-1], f"the loader's own generator differs after epoch {epoch}"


def assert_as_stock(
    make: Callable[[], Any], which: int = 0, *, ways: Sequence[Any] = WAYS, stays: str | None = None, **how: Any
) -> Seen:
    """Run stock once and fastload in each of `ways`; returns stock's run."""
    expected = stock_run(make, which, **how)
    for way in ways:
        assert_same_run(expected, fast_run(make, which, stays, way, **how))
    return expected
