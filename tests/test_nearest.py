"""Masks: the extension takes the nearest pixel as Pillow does, through turns, crops, padding and windows."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastload import native, pixels
from fastload.executors._one_pass import one_pass

if native.extension() is None:
    pytest.skip("the native extension was not built", allow_module_level=True)
N = native.extension()


def labels(size: tuple[int, int], seed: int) -> Any:
    """Every pixel of a small mask another number, as far as bytes go."""
    return np.random.default_rng(seed).permutation(size[0] * size[1]).astype(np.uint8).reshape(size[1], size[0])


def by_pillow(mask: Any, todo: list[pixels.Step]) -> Any:
    return np.asarray(pixels.apply(Image.fromarray(mask), todo))


def gathered(mask: Any, todo: list[pixels.Step]) -> Any:
    one = one_pass(todo, (mask.shape[1], mask.shape[0]))
    assert one is not None
    assert one.nearest == any(isinstance(s, pixels.Window) and s.out is not None for s in todo)
    box, size, window, mirrored = one.arguments()
    out = np.full((1, window[3] - window[1], window[2] - window[0]), 99, np.uint8)
    assert N.resize(mask[..., None], box, size, window, mirrored, native.pillow13(), out, *one.rest(), nearest=True) is None
    return out[0]


def random_steps(rng: random.Random, size: tuple[int, int]) -> list[pixels.Step]:
    """Turns, then a crop and padding, then a mirror, a resize, a window: each or not."""
    todo: list[pixels.Step] = [pixels.Turn(rng.randrange(7)) for _ in range(rng.choice((0, 0, 1, 2)))]
    for step in todo:
        size = size[::-1] if step.method in (2, 4, 5, 6) else size  # type: ignore[union-attr]
    box = None
    if rng.random() < 0.7:
        left, top = rng.randrange(size[0]), rng.randrange(size[1])
        box = (left, top, rng.randint(left + 1, size[0]), rng.randint(top + 1, size[1]))
    pad = tuple(rng.choice((0, 1, 3, 30)) for _ in range(4)) if rng.random() < 0.4 else None
    todo.append(pixels.Window(box, pad, rng.choice(("zeros", "border", "reflection"))))  # type: ignore[arg-type]
    if rng.random() < 0.4:
        todo.append(pixels.Turn(0))
    out = (rng.choice((1, 2, 7, 24, 61)), rng.choice((1, 3, 8, 40, 57)))
    if rng.random() < 0.85:
        todo.append(pixels.Window(None, None, "zeros", out, 0))
        if rng.random() < 0.4:
            todo.append(pixels.Window((out[0] // 3, out[1] // 4, out[0], out[1])))
    return todo


def test_any_steps_give_pillows_labels() -> None:
    rng = random.Random(4)
    for k in range(2000):
        mask = labels((rng.randint(1, 50), rng.randint(1, 50)), k)
        todo = random_steps(rng, (mask.shape[1], mask.shape[0]))
        assert np.array_equal(by_pillow(mask, todo), gathered(mask, todo)), todo


@pytest.mark.parametrize("out", [(1, 1), (224, 224), (2000, 3), (3, 2000), (997, 1009)])
def test_places_add_up_as_in_pillow(out: tuple[int, int]) -> None:
    for size in ((999, 7), (1, 640), (333, 501)):
        mask = labels(size, 1)
        todo: list[pixels.Step] = [pixels.Window(None, None, "zeros", out, 0)]
        assert np.array_equal(by_pillow(mask, todo), gathered(mask, todo))


def test_rows_need_not_follow_each_other() -> None:
    mask = labels((40, 30), 2)
    todo: list[pixels.Step] = [pixels.Window((3, 2, 17, 13), None, "zeros", (9, 9), 0)]
    assert np.array_equal(gathered(mask[2:28:2, 5:30], todo), by_pillow(np.ascontiguousarray(mask[2:28:2, 5:30]), todo))


def test_colours_and_arrays_of_another_size_are_refused() -> None:
    colours, out = np.zeros((8, 8, 3), np.uint8), np.zeros((1, 4, 4), np.uint8)
    with pytest.raises(ValueError, match="one channel"):
        N.resize(colours, (0, 0, 8, 8), (4, 4), (0, 0, 4, 4), False, True, out, nearest=True)
    with pytest.raises(ValueError, match="output"):
        N.resize(colours[..., :1].copy(), (0, 0, 8, 8), (5, 4), (0, 0, 5, 4), False, True, out, nearest=True)


def test_images_are_never_resized_to_the_nearest_pixel_by_the_bilinear_pass() -> None:
    assert one_pass([pixels.Window(None, None, "zeros", (4, 4), 1)], (8, 8)) is None
    one = one_pass([pixels.Window(None, None, "zeros", (4, 4), 0)], (8, 8))
    assert one is not None
    assert one.nearest
