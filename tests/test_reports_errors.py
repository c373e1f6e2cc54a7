"""Public fault reports as scenarios, row by row: errors, parity of pixels, inputs of every form."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import fastai.vision.all as stock
import numpy as np
import pytest
import torch
from cases import (
    CASES,
    EXECUTORS,
    MeanColour,
    folder_loaders,
    labels,
    learner,
    needs_shared,
    number_of,
    numbered,
    ran_by_fastload,
    seeded,
    tree,
)
from fastai.vision.all import (
    Datasets,
    IntToFloatTensor,
    Normalize,
    PILImage,
    PILImageBW,
    Resize,
    TfmdDL,
    ToTensor,
    imagenet_stats,
    mnist_stats,
)
from PIL import Image

import fastload
import fastload.vision as fast
from fastload.source import Files, Ref
from fastload.testing import assert_same_batches

TRUNCATED = CASES / "files" / "F35_truncated_jpeg.jpg"


# Errors.


@needs_shared
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("workers", [0, 2])
def test_r17_the_full_path_of_a_damaged_file_is_told(workers: int, executor: str, small: Path) -> None:
    items = [*sorted((small / "valid").rglob("*.png")), TRUNCATED]
    dl = numbered(items, executor, y=lambda path: 0, split=1, num_workers=workers)
    with pytest.raises(OSError, match="image file is truncated") as caught:
        list(dl)
    assert str(TRUNCATED) in str(caught.value)


@needs_shared
def test_r17_check_decodes_whole_files(small: Path, tmp_path: Path) -> None:
    checking = pytest.importorskip("fastload.checking")
    folder = tree(tmp_path, "small")
    (folder / "valid" / "cat" / "truncated.png").write_bytes(TRUNCATED.read_bytes())
    broken = checking.check(folder_loaders(fast, folder)).broken
    assert [str(folder / "valid" / "cat" / "truncated.png")] == [finding.path for finding in broken]


ENDINGS = (MemoryError, KeyboardInterrupt, SystemExit, StopIteration)


@contextmanager
def raised_at_the_consumer(kind: type[BaseException]) -> Iterator[None]:
    """The error comes within five seconds; StopIteration, which would look like the end, comes inside a RuntimeError."""
    start = time.monotonic()
    with pytest.raises(RuntimeError if kind is StopIteration else kind) as caught:
        yield
    assert time.monotonic() - start < 5
    assert kind is not StopIteration or isinstance(caught.value.__cause__, StopIteration)
    assert [] == [thread.name for thread in threading.enumerate() if thread.name.startswith("fastload-")]


class Trap:
    """A getter that raises at one item once it is set."""

    def __init__(self, at: int, kind: type[BaseException]) -> None:
        self.at, self.kind, self.set = at, kind, False

    def __call__(self, path: Path) -> Any:
        if self.set and number_of(path) == self.at:
            raise self.kind
        return path


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("at", [0, 13, 25])
@pytest.mark.parametrize("kind", ENDINGS)
@pytest.mark.parametrize("where", ["x", "y"])
def test_r19_what_a_getter_raises_reaches_the_consumer(
    where: str, kind: type[BaseException], at: int, executor: str, noise: list[Path]
) -> None:
    trap = Trap(at, kind)

    def get(path: Path) -> Any:
        return trap(path) if where == "x" else number_of(trap(path))

    dl = numbered(noise[:26], executor, **{where: get})
    trap.set = True
    with raised_at_the_consumer(kind):
        list(dl)
    trap.set = False
    assert list(range(26)) == sum(labels(dl), [])


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("at", [0, 13, 25])
@pytest.mark.parametrize("kind", ENDINGS)
def test_r19_what_reading_raises_reaches_the_consumer(
    kind: type[BaseException], at: int, workers: int, executor: str, noise: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Files.read

    def failing(self: Files, ref: Ref, window: Any = None) -> Any:
        if ref.index == at:
            raise kind
        return read(self, ref, window)

    dl = numbered(noise[:26], executor, num_workers=workers)
    monkeypatch.setattr(Files, "read", failing)
    batches = []
    with raised_at_the_consumer(kind):
        batches.extend(dl)
    monkeypatch.undo()
    assert list(range(26)) == sum(labels(dl), [])


@pytest.mark.parametrize("kind", ENDINGS)
def test_r19_what_a_transform_left_to_stock_raises_reaches_the_consumer(kind: type[BaseException], noise: list[Path]) -> None:
    def fail(image: Any) -> Any:
        raise kind

    dl = numbered(noise[:26], "threads", item_tfms=(fail,))
    with raised_at_the_consumer(kind):
        list(dl)
    assert not ran_by_fastload(dl)


@needs_shared
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("workers", [0, 2])
def test_r21_an_epoch_after_an_error_is_right(workers: int, executor: str, noise: list[Path]) -> None:
    items = [noise[0], TRUNCATED, *noise[2:12]]
    dl = numbered(items, executor, y=lambda path: items.index(path), num_workers=workers)
    for _ in range(2):
        with pytest.raises(OSError, match="F35_truncated"):
            list(dl)
    dl.get_idxs = lambda: [0, *range(2, 12)]
    assert [[0, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11]] == labels(dl)
    healthy = numbered(noise[:12], num_workers=workers)
    healthy.get_idxs = dl.get_idxs
    assert 3 == assert_same_batches(seeded(healthy), seeded(dl))


@needs_shared
@pytest.mark.parametrize("executor", EXECUTORS)
def test_r21_batches_after_a_skipped_file_are_right(executor: str, noise: list[Path]) -> None:
    items = [noise[0], TRUNCATED, *noise[2:12]]
    dl = numbered(items, executor, y=lambda path: items.index(path), item_tfms=(Resize(16, "squish"),), bad_images="skip")
    healthy = numbered(noise[:12], item_tfms=(Resize(16, "squish"),))
    assert [[0, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]] == labels(seeded(dl))
    assert 2 == assert_same_batches(list(seeded(healthy))[1:], list(seeded(dl))[1:])


# Parity.


@needs_shared
@pytest.mark.parametrize("executor", EXECUTORS)
def test_r36_a_large_photo_is_resized_to_stocks_very_pixels(executor: str) -> None:
    items = [CASES / "files" / "F01_orient1.jpg"]
    how = {"y": lambda path: 0, "item_tfms": (Resize(224, "squish"),), "split": 1}
    dl = numbered(items, executor, **how)
    assert 1 == assert_same_batches(numbered(items, **how), dl)
    assert ran_by_fastload(dl)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("stats", [imagenet_stats, mnist_stats])
@pytest.mark.parametrize("cls", [PILImage, PILImageBW])
def test_r38_grey_128_is_normalised_per_channel(cls: type, stats: Any, half: bool, executor: str, tmp_path: Path) -> None:
    items = [tmp_path / f"{number}.png" for number in range(4)]
    for item in items:
        Image.new("RGB", (16, 16), (128, 128, 128)).save(item)

    def made() -> Any:
        sets = Datasets(items, [[cls.create], [number_of]], splits=[[0, 1, 2, 3], [0, 1, 2, 3]])  # type: ignore[attr-defined]
        tfms = [IntToFloatTensor(), Normalize.from_stats(*stats, cuda=False)]
        return TfmdDL(sets.valid, bs=4, num_workers=0, after_item=[ToTensor()], after_batch=tfms)

    dl = fastload.accelerate(made(), executor=executor)
    assert 1 == assert_same_batches(made(), dl)
    ((x, _),) = list(dl)
    x = torch.as_tensor(x.half() if half else x).double()
    expected = torch.tensor([(128 / 255 - mean) / std for mean, std in zip(*stats, strict=True)], dtype=torch.double)
    assert (1 if (cls, len(stats[0])) == (PILImageBW, 1) else 3) == x.shape[1]
    assert torch.allclose(expected[None, :, None, None].expand_as(x), x, rtol=0, atol=1e-3 if half else 1e-6)


# Inputs.


def inputs(path: Path) -> dict[str, Any]:
    """One picture in every form that fastai's test_dl takes."""
    opened = Image.open(path).convert("RGB")
    array = np.asarray(opened)
    return {
        "path": path,
        "str": str(path),
        "Pillow": opened,
        "PILImage": PILImage.create(path),
        "bytes": path.read_bytes(),
        "array": array,
        "tensor": torch.tensor(array),
        "RGBA": opened.convert("RGBA"),
        "L": opened.convert("L"),
    }


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two classes, 16 by 16 pixels of noise."""
    folder = tmp_path_factory.mktemp("tiny") / "set"
    for number in range(8):
        item = folder / ("train", "valid")[number % 2] / ("cat", "dog")[number // 4] / f"{number}.png"
        item.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(item)
    return folder


FORMS = ["path", "str", "Pillow", "PILImage", "bytes", "array", "tensor", "RGBA", "L"]


@pytest.mark.parametrize("executor", ["auto", *EXECUTORS])
@pytest.mark.parametrize("form", FORMS)
def test_r40_every_form_of_input_gives_stocks_batch(form: str, executor: str, tiny: Path) -> None:
    item = inputs(tiny / "valid" / "cat" / "1.png")[form]
    expected = folder_loaders(stock, tiny).test_dl([item]).one_batch()
    actual = folder_loaders(fast, tiny, executor=executor).test_dl([item]).one_batch()
    assert 1 == assert_same_batches([expected], [actual])
    assert (1, {"RGBA": 4, "L": 1}.get(form, 3), 16, 16) == tuple(actual[0].shape)


@pytest.mark.parametrize("form", FORMS)
def test_r40_predict_takes_every_form_of_input(form: str, tiny: Path) -> None:
    item = inputs(tiny / "valid" / "cat" / "1.png")[form]
    (wanted, _, _), (found, _, _) = (
        (label, y, torch.as_tensor(p)) for label, y, p in map(predicted, (stock, fast), (tiny,) * 2, (item,) * 2)
    )
    assert wanted == found


def predicted(fastai: ModuleType, path: Path, item: Any) -> Any:
    learn = learner(folder_loaders(fastai, path), TwoClasses())
    with learn.no_bar(), learn.no_logging():
        return learn.predict(item)


class TwoClasses(MeanColour):
    """Scores two classes by mean brightness."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = torch.as_tensor(x).mean((1, 2, 3)) * self.scale
        return torch.stack([mean, 1 - mean], 1)
