"""What happens between the batches of an epoch: changes, draws and iterators that only show on the way are stock's, too."""

from __future__ import annotations

import random
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fastai.vision import all as fv
from pictures import Pictures

import fastload
from fastload import stock
from fastload.source import Files, Ref
from fastload.testing import assert_same_batches

Change = Callable[[Any], None]


def block(p: Pictures, workers: int, **how: Any) -> Any:
    """Loaders of twenty images, batches of four."""
    options: dict[str, Any] = {
        "blocks": (fv.ImageBlock, fv.CategoryBlock),
        "get_y": fv.parent_label,
        "item_tfms": fv.Resize(16),
    }
    dblock = fv.DataBlock(get_items=lambda _: p.files[:20], splitter=fv.IndexSplitter([0, 1]), **(options | how))
    fv.set_seed(5)
    return dblock.dataloaders(p.images, bs=4, num_workers=workers, device="cpu")


def epochs(dls: Any, fast: bool, change: Change | None = None, at: int = 1, count: int = 2) -> tuple[list[Any], Any]:
    """The batches of some epochs, `change` called after batch `at` of the first, and the generators afterwards."""
    if fast:
        fastload.accelerate(dls, threads=2)
    dls.train.rng.seed(3)
    fv.set_seed(9)
    batches = []
    for epoch in range(count):
        for k, batch in enumerate(dls.train):
            batches.append(batch)
            if epoch == 0 and k == at and change is not None:
                change(dls)
    return batches, (random.getstate(), torch.get_rng_state().tolist())


def assert_as_stock(make: Callable[[], Any], change: Change | None = None, at: int = 1) -> None:
    wanted, found = epochs(make(), False, change, at), epochs(make(), True, change, at)
    assert assert_same_batches(found[0], wanted[0]) == len(wanted[0]) > 4
    assert wanted[1] == found[1]


def _size(dls: Any) -> None:
    dls.train.after_item.fs[0].size = fv.fastuple(24, 24)


def _added(dls: Any) -> None:
    dls.train.after_item.add(fv.FlipItem(1.0))


def _replaced(dls: Any) -> None:
    dls.train.after_item = fv.Pipeline([fv.Resize(20), fv.ToTensor()], split_idx=0)


def _always(dls: Any) -> None:
    dls.train.after_item.fs[1].p = 1.0


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("change", [_size, _added, _replaced, _always])
def test_item_transforms_changed_between_batches(pictures: Pictures, workers: int, change: Change) -> None:
    def make() -> Any:
        item = [fv.RandomResizedCrop(16), fv.FlipItem(0.3)]
        return block(pictures, workers, item_tfms=item if change is _always else item[:1])

    assert_as_stock(make, change)


@pytest.mark.parametrize("workers", [0, 2])
def test_points_follow_the_pixels_when_a_size_is_changed_between_batches(pictures: Pictures, workers: int) -> None:
    def make() -> Any:
        points = lambda f: fv.tensor(pictures.annotation(f)["points"])  # noqa: E731
        return block(pictures, workers, blocks=(fv.ImageBlock, fv.PointBlock), get_y=points)

    assert_as_stock(make, _size, at=0)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["sampler", "generator", "list"])
def test_indices_that_can_be_read_only_once(pictures: Pictures, workers: int, kind: str) -> None:
    def make() -> Any:
        dls = block(pictures, workers)
        ways: dict[str, Callable[[], Any]] = {
            "sampler": lambda: iter(torch.utils.data.RandomSampler(dls.train_ds)),
            "generator": lambda: (random.randrange(len(dls.train_ds)) for _ in range(18)),
            "list": lambda: iter([3, 1, 2] * 6),
        }
        dls.train.get_idxs = ways[kind]
        return dls

    assert_as_stock(make)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_random_target_that_no_plan_holds_is_drawn_once(pictures: Pictures, workers: int) -> None:
    how: dict[str, Any] = {"blocks": (fv.ImageBlock, fv.TransformBlock), "get_y": lambda _: (random.random(), 1)}
    assert_as_stock(lambda: block(pictures, workers, **how))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_single_batch_before_the_state_is_saved_changes_no_later_epoch(pictures: Pictures, workers: int) -> None:
    dls = fastload.accelerate(block(pictures, workers, item_tfms=fv.RandomResizedCrop(16)))
    running = iter(dls.train)
    next(running)
    dls.one_batch()
    state = dls.train.state_dict()
    wanted = [*running, *dls.train]
    other = fastload.accelerate(block(pictures, workers, item_tfms=fv.RandomResizedCrop(16)))
    other.train.load_state_dict(state)
    assert_same_batches([*other.train, *other.train], wanted)


def test_a_package_whose_name_begins_like_fastais_is_not_fastais(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastai.vision import core

    twin = types.FunctionType(
        core.load_image.__code__.replace(co_filename=core.__file__.replace("/fastai/", "/fastai_more/")), vars(core)
    )
    assert stock.altered() is None
    monkeypatch.setattr(core, "load_image", twin)
    assert "load_image" in str(stock.altered())


def test_a_folder_given_as_an_image_is_an_os_error(pictures: Pictures) -> None:
    with pytest.raises(IsADirectoryError, match="cat"):
        Files().read(Ref(0, str(pictures.files[3].parent)))


@pytest.mark.parametrize("field", ["done", "samples", "words"])
@pytest.mark.parametrize("value", ["x", -1, [], 10**12, ["x"]])
def test_a_state_with_impossible_counts_is_damaged(pictures: Pictures, field: str, value: Any) -> None:
    if field == "words" and value in ([], 10**12):
        pytest.skip("no number of words is impossible, and none means no workers")
    dls = fastload.accelerate(block(pictures, 2))
    next(running := iter(dls.train))
    state = dls.train.state_dict()
    running.close()
    state["epoch"][field] = value
    with pytest.raises(fastload.FastloadError, match="damaged"):
        dls.train.load_state_dict(state)
