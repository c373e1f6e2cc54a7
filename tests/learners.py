"""Learners made twice, with stock and with fastload, and a comparison of everything they give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fastai.vision import all as stock_vision
from pictures import Pictures
from sidebyside import (
    seed_all,
    stock_only,
    warned,
)

from fastload import vision as fast_vision


def loaders(vision: Any, p: Pictures, workers: int = 0, **kw: Any) -> Any:
    """Loaders of a usual pipeline from one seed."""
    seed_all(3)
    tfms = {
        "item_tfms": [vision.RandomResizedCrop(24), vision.FlipItem()],
        "batch_tfms": [vision.Rotate(), vision.Brightness(), vision.Normalize()],
    }
    kw = {"valid_pct": 0.3, "seed": 1, "bs": 4, "device": "cpu", "num_workers": workers} | tfms | kw
    return vision.ImageDataLoaders.from_folder(p.images, **kw)


def learner(vision: Any, dls: Any, path: Path | None = None, cbs: Any = ()) -> Any:
    """A tiny convolution net with seeded weights."""
    seed_all(4)
    nn = torch.nn
    head = [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(4, 3)]
    model = nn.Sequential(nn.Conv2d(3, 4, 5, 4), *head)
    learn = vision.Learner(dls, model, loss_func=vision.CrossEntropyLossFlat(), metrics=vision.accuracy, path=path, cbs=cbs)
    learn.remove_cb(vision.ProgressCallback)
    learn.logger = lambda _: None
    return learn


def weights(learn: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for p in learn.model.parameters()]


def assert_same(expected: Any, actual: Any, where: str = "") -> None:
    """Equal to the last bit, whatever it is made of."""
    if isinstance(expected, torch.Tensor):
        assert type(expected) is type(actual), where
        assert expected.dtype == actual.dtype and expected.shape == actual.shape, where
        assert expected.detach().contiguous().numpy().tobytes() == actual.detach().contiguous().numpy().tobytes(), where
    elif isinstance(expected, dict):
        assert list(expected) == list(actual), where
        for key in expected:
            assert_same(expected[key], actual[key], f"{where}/{key}")
    elif isinstance(expected, list | tuple | stock_vision.L):
        assert len(expected) == len(actual), where
        for k, (a, b) in enumerate(zip(expected, actual, strict=True)):
            assert_same(a, b, f"{where}/{k}")
    else:
        assert expected == actual or (expected != expected and actual != actual), where


def both(story: Callable[[Any], Any]) -> Any:
    """Tell the story with stock and with the import swap, and compare what they came to; returns stock's."""
    with stock_only():
        expected = story(stock_vision)
    with warned() as lines:
        actual = story(fast_vision)
    assert [] == lines
    assert_same(expected, actual)
    return expected
