"""A saved place in an epoch, and what may not take it: another loader, other data, a batch in between."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from pictures import Pictures
from sidebyside import seed_all

import fastload
from fastload.errors import StateError


def loader(pictures: Pictures) -> Any:
    from fastai.vision.all import FlipItem, ImageDataLoaders, RandomResizedCrop, aug_transforms

    seed_all(2)
    labels = [f.parent.name for f in pictures.files]
    options = {"item_tfms": [RandomResizedCrop(20), FlipItem()], "batch_tfms": aug_transforms(), "bs": 3, "num_workers": 2}
    made = ImageDataLoaders.from_lists(
        pictures.path, pictures.files, labels, valid_pct=0.2, seed=1, device=torch.device("cpu"), **options
    )
    return fastload.accelerate(made).train


def interrupted(dl: Any, after: int) -> dict[str, Any]:
    """The state after `after` batches of an epoch, as it comes out of a JSON file."""
    seed_all(5)
    for number, _ in enumerate(dl, 1):
        random.random()
        if number == after:
            return dict(json.loads(json.dumps(dl.state_dict())))
    raise AssertionError("the epoch is too short")


def test_one_batch_in_between_leaves_the_place_and_a_loaded_state_alone(pictures: Pictures) -> None:
    dl = loader(pictures)
    seed_all(5)
    for number, _ in enumerate(dl, 1):
        if number == 2:
            before = dl.state_dict()
            dl.one_batch()
            after = dl.state_dict()
            break
    assert before["epoch"]["done"] == after["epoch"]["done"] == 2
    assert (before["rng"], before["epoch"]["words"]) == (after["rng"], after["epoch"]["words"])
    fresh = loader(pictures)
    fresh.load_state_dict(after)
    fresh.one_batch()
    assert len(dl) - 2 == len(list(fresh))


def test_other_items_or_another_pipeline_are_another_loader(pictures: Pictures, tmp_path: Path) -> None:
    state = interrupted(loader(pictures), 1)
    shutil.copytree(pictures.path, tmp_path / "set")
    with pytest.raises(StateError, match=r"another loader: the items \(their full paths\) differ$"):
        loader(Pictures(tmp_path / "set")).load_state_dict(state)
    changed = loader(pictures)
    next(f for f in changed.after_item.fs if type(f).__name__ == "RandomResizedCrop").size = (24, 24)
    with pytest.raises(StateError, match="another loader: the item pipeline differs$"):
        changed.load_state_dict(state)


def test_a_damaged_state_is_refused_by_its_own_error(pictures: Pictures) -> None:
    state = interrupted(loader(pictures), 1)
    for key, value in (("rng", [1]), ("order", {}), ("epoch", {"done": 1})):
        with pytest.raises(StateError, match="the state is damaged"):
            loader(pictures).load_state_dict({**state, key: value})


def test_a_generator_can_be_moved_far_ahead() -> None:
    from fastload.draws import rng_after_words

    far = rng_after_words(3, 70_000_000)
    near = rng_after_words(3, 69_999_999)
    near.getrandbits(32)
    assert near.getstate() == far.getstate()
