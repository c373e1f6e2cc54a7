"""A saved place in an epoch: the batches that follow are those of the uninterrupted run, here and in a new process."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastai.data.load import SkipItemException
from fastai.vision import all as fv
from pictures import Pictures
from sidebyside import SERIAL, THREE_THREADS, Seen, assert_same_run, built, generator_states, one_epoch, seed_all, warned, watch

import fastload
from fastload.errors import StateError

LIMIT_BYTES = 64_000


def flat(image: fv.PILImage) -> fv.PILImage:
    """A user's own item transform, which sends a loader to stock."""
    return image.point(lambda v: min(v, 200))


def folder(p: Pictures, workers: int, items: Any = None, batch: bool = False, **kw: Any) -> Any:
    tfms = items or [fv.RandomResizedCrop(24), fv.FlipItem()]
    augment = [*fv.aug_transforms(size=20), fv.RandomErasing()] if batch else None
    kw = {"bs": 3, "valid_pct": 0.3, "seed": 1, "device": "cpu"} | kw
    return fv.ImageDataLoaders.from_folder(p.images, item_tfms=tfms, batch_tfms=augment, num_workers=workers, **kw)


def weighted(p: Pictures, workers: int, weights: Any = None) -> Any:
    dblock = fv.DataBlock(
        (fv.ImageBlock, fv.CategoryBlock),
        get_items=fv.get_image_files,
        get_y=fv.parent_label,
        splitter=fv.RandomSplitter(0.3, seed=1),
        item_tfms=fv.RandomResizedCrop(24),
    )
    weights = np.arange(1, 18) if weights is None else weights
    return dblock.weighted_dataloaders(p.images, weights, bs=3, num_workers=workers, device="cpu")


KINDS: dict[str, Callable[[Pictures, int], Any]] = {
    "plain": lambda p, w: folder(p, w),
    "augmented": lambda p, w: folder(p, w, batch=True),
    "dropping the last": lambda p, w: folder(p, w, bs=5, drop_last=True),
    "keeping the last": lambda p, w: folder(p, w, bs=5, drop_last=False),
    "in order": lambda p, w: folder(p, w, shuffle=False),
    "weighted": lambda p, w: weighted(p, w),
    "stock": lambda p, w: folder(p, w, [flat, fv.RandomResizedCrop(24)]),
    "no draws": lambda p, w: folder(p, w, [fv.Resize(24, "squish")]),
}


def accelerated(p: Pictures, kind: str, workers: int, **way: Any) -> Any:
    return fastload.accelerate(built(lambda: KINDS[kind](p, workers), 0), **way)


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    """The state as a checkpoint would bring it back; at most 64 kB."""
    text = json.dumps(state)
    assert len(text) <= LIMIT_BYTES
    return dict(json.loads(text))


def interrupted(dl: Any, after: int, epochs: int = 2) -> tuple[dict[str, Any], Seen]:
    """The state after `after` batches of the first epoch, and everything that follows it."""
    seen, state = Seen(), None
    seed_all(7)
    for epoch in range(epochs):
        batches: list[Any] = []
        seen.batches.append(batches)
        if epoch == 0 and after == 0:
            state = dl.state_dict()
        for number, batch in enumerate(dl, 1):
            if epoch or number > after:
                batches.append(batch)
            if epoch == 0 and number == after:
                state = dl.state_dict()
        seen.states.append(generator_states(dl))
    assert state is not None
    return through_json(state), seen


def scrambled() -> None:
    """Other code has drawn from every generator since."""
    seed_all(12345)
    random.random(), np.random.rand(), torch.rand(3)


def resumed(dl: Any, state: dict[str, Any], epochs: int = 2) -> Seen:
    """What follows once `state` is loaded, the global generators being anywhere."""
    seen = Seen()
    scrambled()
    dl.load_state_dict(state)
    for _ in range(epochs):
        seen.batches.append(list(dl))
        seen.states.append(generator_states(dl))
    return seen


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_rest_of_the_epoch_and_the_next_are_those_of_the_uninterrupted_run(
    pictures: Pictures, kind: str, workers: int
) -> None:
    state, expected = interrupted(accelerated(pictures, kind, workers), 1 if "last" in kind else 2)
    assert_same_run(expected, resumed(accelerated(pictures, kind, workers), state))


@pytest.mark.slow
@pytest.mark.parametrize("way", [SERIAL, THREE_THREADS], ids=["serial", "threads"])
@pytest.mark.parametrize("after", range(6))
@pytest.mark.parametrize("workers", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_every_place_of_every_loader(pictures: Pictures, kind: str, workers: int, after: int, way: Any) -> None:
    total = len(accelerated(pictures, kind, workers))
    state, expected = interrupted(accelerated(pictures, kind, workers, **way), min(after, total))
    assert_same_run(expected, resumed(accelerated(pictures, kind, workers), state))


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("way", [SERIAL, THREE_THREADS], ids=["serial", "threads"])
def test_another_executor_may_go_on(pictures: Pictures, way: Any, workers: int) -> None:
    state, expected = interrupted(accelerated(pictures, "augmented", workers, **way), 2)
    other = SERIAL if way is THREE_THREADS else THREE_THREADS
    assert_same_run(expected, resumed(accelerated(pictures, "augmented", workers, **other), state))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_loader_may_go_back(pictures: Pictures, workers: int) -> None:
    dl = accelerated(pictures, "augmented", workers)
    state, expected = interrupted(dl, 2)
    for _ in range(2):
        assert_same_run(expected, resumed(dl, state))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_run_may_be_saved_again(pictures: Pictures, workers: int) -> None:
    state, _ = interrupted(accelerated(pictures, "augmented", workers), 1)
    dl = accelerated(pictures, "augmented", workers)
    scrambled()
    dl.load_state_dict(state)
    later = [dl.state_dict() for _ in itertools.islice(dl, 2)][-1]
    state, expected = interrupted(accelerated(pictures, "augmented", workers), 3)
    assert state["epoch"]["done"] == later["epoch"]["done"]
    assert_same_run(expected, resumed(accelerated(pictures, "augmented", workers), through_json(later)))


# Other places than the middle.


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["augmented", "weighted", "stock"])
def test_before_the_first_epoch_it_is_the_place_before_the_first_batch(pictures: Pictures, kind: str, workers: int) -> None:
    state, expected = interrupted(accelerated(pictures, kind, workers), 0)
    assert state["epoch"] is None
    assert_same_run(expected, resumed(accelerated(pictures, kind, workers), state))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["augmented", "weighted", "stock"])
def test_after_an_epoch_it_is_the_place_before_the_next(pictures: Pictures, kind: str, workers: int) -> None:
    dl = accelerated(pictures, kind, workers)
    seed_all(7)
    list(dl)
    state = through_json(dl.state_dict())
    expected = Seen([list(dl)], [generator_states(dl)])
    assert_same_run(expected, resumed(accelerated(pictures, kind, workers), state, epochs=1))


@pytest.mark.parametrize("workers", [0, 2])
def test_at_the_last_batch_nothing_is_left_but_the_next_epoch(pictures: Pictures, workers: int) -> None:
    dl = accelerated(pictures, "augmented", workers)
    state, expected = interrupted(dl, len(dl))
    assert [] == expected.batches[0]
    assert_same_run(expected, resumed(accelerated(pictures, "augmented", workers), state))


@pytest.mark.parametrize("workers", [0, 2])
def test_after_a_break_it_is_the_place_where_the_loop_was_left(pictures: Pictures, workers: int) -> None:
    _, expected = interrupted(accelerated(pictures, "augmented", workers), 2)
    dl = accelerated(pictures, "augmented", workers)
    seed_all(7)
    list(itertools.islice(dl, 2))
    state = through_json(dl.state_dict())
    assert_same_run(expected, resumed(accelerated(pictures, "augmented", workers), state))


def test_a_loaded_state_is_forgotten_after_one_epoch(pictures: Pictures) -> None:
    state, expected = interrupted(accelerated(pictures, "plain", 2), 2, epochs=3)
    assert [2, 4, 4] == [len(batches) for batches in expected.batches]
    assert_same_run(expected, resumed(accelerated(pictures, "plain", 2), state, epochs=3))


def test_loading_changes_nothing_until_the_next_epoch_starts(pictures: Pictures) -> None:
    state, _ = interrupted(accelerated(pictures, "augmented", 0), 2)
    dl = accelerated(pictures, "augmented", 0)
    scrambled()
    before = generator_states(dl)
    dl.load_state_dict(state)
    assert before == generator_states(dl)


def test_saving_changes_nothing(pictures: Pictures) -> None:
    for workers in (0, 2):
        plain = watch(accelerated(pictures, "augmented", workers))
        dl = accelerated(pictures, "augmented", workers)

        def saving(dl: Any) -> Any:
            for batch in one_epoch(dl):
                dl.state_dict()
                yield batch

        assert_same_run(plain, watch(dl, visit=saving))


def test_saving_does_not_call_a_before_iter_of_the_users_own(pictures: Pictures) -> None:
    dl = fastload.accelerate(built(lambda: folder(pictures, 0, before_iter=random.random), 0))
    seed_all(7)
    for _ in dl:
        before = generator_states(dl)
        dl.state_dict()
        assert before == generator_states(dl)


def test_items_that_are_objects_are_known_again(pictures: Pictures) -> None:
    def make() -> Any:
        images = [fv.PILImage.create(f) for f in pictures.files]
        dblock = fv.DataBlock((fv.ImageBlock, fv.RegressionBlock), get_y=lambda _: 1.0, item_tfms=fv.RandomResizedCrop(24))
        return fastload.accelerate(dblock.dataloaders(images, bs=4, num_workers=0, device="cpu")).train

    state, expected = interrupted(built(make), 2)
    assert_same_run(expected, resumed(built(make), state))


@pytest.mark.parametrize("kind", ["augmented", "stock"])
def test_a_state_is_small_json_even_with_sixteen_workers(pictures: Pictures, kind: str) -> None:
    dl = accelerated(pictures, kind, 16 if kind == "augmented" else 2)
    seed_all(7)
    for _ in itertools.islice(dl, 4):
        through_json(dl.state_dict())


# What goes to stock in the middle.


class Turning:
    """Gives some items as arrays, which no Plan can hold, and the rest as paths."""

    def __init__(self, odd: dict[Path, Any]) -> None:
        self.odd = odd

    def __call__(self, file: Path) -> Any:
        return self.odd.get(file, file)


def turning(p: Pictures, workers: int, at: int) -> Any:
    file = p.files[at]
    dblock = fv.DataBlock(
        (fv.ImageBlock, fv.RegressionBlock),
        get_x=Turning({file: np.asarray(fv.PILImage.create(file))}),
        get_y=lambda f: float(f.stem[-2:]),
        splitter=fv.IndexSplitter([16]),
        item_tfms=[fv.RandomResizedCrop(24), fv.FlipItem()],
    )
    dls = dblock.dataloaders(p.files, bs=2, num_workers=workers, device="cpu", shuffle=False)
    return fastload.accelerate(dls.train)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("after", [1, 4, 6])
def test_an_epoch_that_goes_over_to_stock_resumes_before_and_after_that(pictures: Pictures, workers: int, after: int) -> None:
    state, expected = interrupted(built(lambda: turning(pictures, workers, at=9)), after)
    with warned() as lines:
        assert_same_run(expected, resumed(built(lambda: turning(pictures, workers, at=9)), state))
    assert any("not as a path" in line for line in lines)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("before", ["stock", "threads"])
def test_what_stock_began_fastload_ends_and_the_other_way_round(pictures: Pictures, before: str, workers: int) -> None:
    after = "threads" if before == "stock" else "stock"
    state, expected = interrupted(accelerated(pictures, "augmented", workers, executor=before), 2)
    assert_same_run(expected, resumed(accelerated(pictures, "augmented", workers, executor=after), state))


class Skipping:
    """A label function that asks to skip some items once set-up is over."""

    def __init__(self, skip: set[Path]) -> None:
        self.skip, self.on = skip, False

    def __call__(self, file: Path) -> float:
        if self.on and file in self.skip:
            raise SkipItemException
        return 1.0


def skipping(p: Pictures, drop_last: bool) -> Any:
    """Three workers, of which one soon has no items left and one ends in a short batch."""
    label = Skipping({p.files[k] for k in (0, 1, 2, 9, 10)})
    tfms = [fv.RandomResizedCrop(24), fv.FlipItem()]
    dblock = fv.DataBlock((fv.ImageBlock, fv.RegressionBlock), get_y=label, splitter=fv.IndexSplitter([16]), item_tfms=tfms)
    dls = dblock.dataloaders(p.files * 2, bs=3, num_workers=3, device="cpu", shuffle=False, drop_last=drop_last)
    label.on = True
    return dls.train


@pytest.mark.parametrize("after", range(1, 7))
@pytest.mark.parametrize("drop_last", [False, True])
def test_skipped_items_do_not_move_the_place(pictures: Pictures, drop_last: bool, after: int) -> None:
    make = lambda: skipping(pictures, drop_last)  # noqa: E731
    state, expected = interrupted(fastload.accelerate(built(make)), after)
    assert_same_run(expected, resumed(fastload.accelerate(built(make)), state))
    if after == 5:  # stock goes on at the same place
        assert_same_run(expected, resumed(fastload.accelerate(built(make), executor="stock"), state))


# States that do not fit.


@pytest.mark.parametrize("other", [{"bs": 4}, {"n": 9}, {"drop_last": False}, {"workers": 1}])
def test_the_state_of_another_loader_is_refused(pictures: Pictures, other: dict[str, Any]) -> None:
    state, _ = interrupted(accelerated(pictures, "plain", 2), 2)
    workers = other.pop("workers", 2)
    dl = fastload.accelerate(built(lambda: folder(pictures, workers, **other), 0))
    with pytest.raises(StateError, match="the state was saved by another loader"):
        dl.load_state_dict(state)


@pytest.mark.parametrize("found", [None, 7, {}, {"fastload_state": 99}, [1]])
def test_what_is_no_state_is_refused(pictures: Pictures, found: Any) -> None:
    with pytest.raises(StateError, match="expected a loader state of version"):
        accelerated(pictures, "plain", 0).load_state_dict(found)


@pytest.mark.parametrize("change", ["fewer files", "other weights", "other order"])
def test_a_changed_data_set_is_refused(pictures: Pictures, change: str) -> None:
    if change == "other weights":
        state, _ = interrupted(accelerated(pictures, "weighted", 2), 2)
        dl = fastload.accelerate(built(lambda: weighted(pictures, 2, np.arange(17, 0, -1)), 0))
    else:
        state, _ = interrupted(accelerated(pictures, "plain", 2), 2)
        kw = {"valid_pct": 0.5} if change == "fewer files" else {"shuffle": False, "drop_last": True}
        dl = fastload.accelerate(built(lambda: folder(pictures, 2, **kw), 0))
    with pytest.raises(StateError):
        dl.load_state_dict(state)
        next(iter(dl))
    assert len(dl) == len(list(dl))  # the loader itself still works


# Another process: see test_fresh_process.py.


def digest(seen: Seen) -> str:
    """SHA-256 of all batches."""
    parts = [part.numpy().tobytes() for batches in seen.batches for batch in batches for part in batch]
    return hashlib.sha256(b"".join(parts)).hexdigest()
