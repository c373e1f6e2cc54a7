"""Every row of the table of awkward files: what stock fastai gives for it is what fastload gives for it."""

from __future__ import annotations

import hashlib
import shutil
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import CASES, EXECUTORS, needs_shared, outcome, ran_by_fastload, seeded, table, tree
from fastai.vision.all import (
    Datasets,
    PILImage,
    PILImageBW,
    PILMask,
    RandomResizedCrop,
    Resize,
    TfmdDL,
    ToTensor,
)
from PIL import Image, UnidentifiedImageError
from sidebyside import generator_states, warned

import fastload
from fastload.errors import EmptyBatch
from fastload.testing import assert_same_batches

pytestmark = needs_shared

FILES = {row["id"]: row for row in table() if row["kind"] != "tree"}
CLASSES = (PILImage, PILImageBW, PILMask)
# recipe: item transforms, and whether the set is the training (0) or the validation set (1)
RECIPES: dict[str, tuple[Callable[[], list[Any]], int]] = {
    "whole": (list, 1),
    "resized": (lambda: [Resize(64)], 0),
    "cropped": (lambda: [RandomResizedCrop(64)], 0),
    "squished": (lambda: [RandomResizedCrop(64)], 1),
}
HEAVY = {"F107": pytest.mark.slow}  # 90 megapixels


def params(outcome: str) -> list[Any]:
    """The rows with this outcome in stock, as parameters named by id."""
    rows = [row for row in FILES.values() if row["expected"]["outcome"] == outcome]
    return [pytest.param(row, id=row["id"], marks=HEAVY.get(row["id"], ())) for row in rows]


DECODED, BROKEN = params("decodes"), params("error")


def file_of(row: dict[str, Any]) -> Path:
    return Path(CASES / row["file"])


def good() -> Path:
    return file_of(FILES["F20"])


@cache
def sets_of(items: tuple[Path, ...], classes: tuple[type, ...]) -> Any:
    """Training and validation set, both of all `items`; each item holds its file once per class."""
    where = list(range(len(items)))
    return Datasets(items, [[cls.create] for cls in classes], splits=[where, where])


def loader(
    items: list[Path], recipe: str, executor: str | None = None, classes: tuple[type, ...] = CLASSES, **keywords: Any
) -> Any:
    """A loader of `items`; stock's own where no executor is named."""
    item_tfms, split = RECIPES[recipe]
    keywords = {"bs": 1, "num_workers": 0, **keywords}
    made = TfmdDL(sets_of(tuple(items), classes).subset(split), after_item=[*item_tfms(), ToTensor()], **keywords)
    return made if executor is None else fastload.accelerate(made, executor=executor, threads=2)


@cache
def stock_outcome(path: Path, recipe: str, classes: tuple[type, ...] = CLASSES) -> tuple[list[Any], Exception | None, Any]:
    """Stock's batches of a good file and this one, its error, and the generators afterwards; kept for every executor."""
    return *outcome(loader([good(), path], recipe, classes=classes)), generator_states()


# What decodes.


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("recipe", ["whole", "resized", "cropped"])
@pytest.mark.parametrize("row", DECODED)
@pytest.mark.filterwarnings("ignore:Palette images", "ignore:Image size")
def test_image_grey_image_and_mask_are_stocks_byte_for_byte(row: dict[str, Any], recipe: str, executor: str) -> None:
    fast = loader([good(), file_of(row)], recipe, executor)
    batches = list(seeded(fast))
    assert 2 == assert_same_batches(stock_outcome(file_of(row), recipe)[0], batches)
    assert ran_by_fastload(fast)
    if recipe == "whole":
        assert hashes_in_table(row) == hashes_of(*batches[1])


def hashes_in_table(row: dict[str, Any]) -> list[str]:
    return [row["expected"]["sha256_16_rgb"], row["expected_bw"]["sha256_16"], row["expected_mask"]["sha256_16"]]


def hashes_of(image: Any, grey: Any, mask: Any) -> list[str]:
    return [sha(image[0].permute(1, 2, 0)), sha(grey[0, 0]), sha(mask[0])]


def sha(pixels: torch.Tensor) -> str:
    return hashlib.sha256(np.ascontiguousarray(pixels)).hexdigest()[:16]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("name", ["F03", "F15", "F20", "F63", "F71"])
def test_a_class_alone_gives_the_same_pixels(name: str, cls: type, executor: str) -> None:
    items = [good(), file_of(FILES[name])]
    fast = loader(items, "cropped", executor, classes=(cls,))
    assert 2 == assert_same_batches(seeded(loader(items, "cropped", classes=(cls,))), seeded(fast))
    assert ran_by_fastload(fast)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("recipe", "workers"), [("squished", 0), ("cropped", 2)])
@pytest.mark.filterwarnings("ignore:Palette images")
def test_all_awkward_files_share_batches_as_in_stock(recipe: str, workers: int, executor: str) -> None:
    items = [file_of(row) for name, row in FILES.items() if row["expected"]["outcome"] == "decodes" and name not in HEAVY]
    fast = loader(items, recipe, executor, bs=8, num_workers=workers)
    assert 7 == assert_same_batches(seeded(loader(items, recipe, bs=8, num_workers=workers)), seeded(fast))
    assert ran_by_fastload(fast)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("row", [p for p in DECODED if p.values[0]["stock_warnings"]])
def test_stocks_warnings_are_still_given(row: dict[str, Any], executor: str) -> None:
    items = [good(), file_of(row)]
    expected, actual = warnings_of(loader(items, "whole")), warnings_of(loader(items, "whole", executor))
    assert expected == actual
    assert all(any(text.startswith(line) for text in actual) for line in row["stock_warnings"])


def warnings_of(dl: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(seeded(dl))
    return sorted(f"{w.category.__name__}: {w.message}" for w in caught)


# What does not.


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("recipe", ["resized", "cropped"])
@pytest.mark.parametrize("row", BROKEN)
def test_an_error_has_stocks_type_and_text_and_names_the_file(row: dict[str, Any], recipe: str, executor: str) -> None:
    _, expected, states = stock_outcome(file_of(row), recipe)
    batches, actual = outcome(loader([good(), file_of(row)], recipe, executor))
    assert (1, states) == (len(batches), generator_states())
    assert_same_error(expected, actual, file_of(row))
    assert row["expected"]["stock_exception"].split(".")[-1] == type(actual).__name__


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("row", BROKEN)
def test_an_error_is_stocks_for_every_class_of_image(row: dict[str, Any], cls: type, executor: str) -> None:
    _, expected, _ = stock_outcome(file_of(row), "whole", (cls,))
    _, actual = outcome(loader([good(), file_of(row)], "whole", executor, classes=(cls,)))
    assert_same_error(expected, actual, file_of(row))


def assert_same_error(expected: Exception | None, actual: Exception | None, path: Path) -> None:
    """The same type and text; fastload may add the path, and must where stock leaves it out."""
    assert (type(expected), str(expected)) == (type(actual), str(actual).removesuffix(f" [file: {path}]"))
    assert str(path) in str(actual)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_bomb_raises_pillows_own_error(workers: int, executor: str) -> None:
    bomb = file_of(FILES["F106"])
    with pytest.raises(Image.DecompressionBombError, match="182250000 pixels") as caught:
        list(seeded(loader([good(), bomb], "cropped", executor, num_workers=workers)))
    assert str(bomb) in str(caught.value)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("row", BROKEN)
def test_batches_before_a_damaged_file_are_right(row: dict[str, Any], executor: str) -> None:
    items = [good()] * 9 + [file_of(row)] + [good()] * 6
    fast = loader(items, "cropped", executor, bs=4)
    (expected, wanted), (actual, found) = outcome(loader(items, "cropped", bs=4)), outcome(fast)
    assert 2 == assert_same_batches(expected, actual)
    assert type(wanted) is type(found)
    assert ran_by_fastload(fast)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_damaged_mask_is_named_though_its_image_is_good(executor: str, tmp_path: Path) -> None:
    shutil.copy(good(), tmp_path / "0.jpg")
    shutil.copy(file_of(FILES["F82"]), tmp_path / "0_mask.png")

    def mask_of(path: Path) -> Path:
        return good() if path == good() else path.with_name(f"{path.stem}_mask.png")

    items = [good(), tmp_path / "0.jpg"]
    sets = Datasets(items, [[PILImage.create], [mask_of, PILMask.create]], splits=[[0, 1], []])
    made = TfmdDL(sets.train, bs=1, num_workers=0, after_item=[Resize(16), ToTensor()])
    with pytest.raises(OSError, match="image file is truncated") as caught:
        list(seeded(fastload.accelerate(made, executor=executor)))
    assert str(tmp_path / "0_mask.png") in str(caught.value)


# Leaving damaged files out.

DAMAGE = {3: "F35", 4: "F53", 13: "F54", 22: "F87"}  # item number: what takes its picture's place


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], list[Path]]:
    """26 pictures whose colour tells their number, healthy; and again, some of them damaged."""
    folders = [tree(tmp_path_factory.mktemp(name), "small") / "train" for name in ("healthy", "damaged")]
    healthy, damaged = (sorted(folder.rglob("*.png")) for folder in folders)
    for number, name in DAMAGE.items():
        damaged[number].write_bytes(file_of(FILES[name]).read_bytes())
    return healthy, damaged


def numbered(items: list[Path], split: int = 0, **keywords: Any) -> Any:
    """A stock loader of (image, its number); flat colours, so that a random crop changes no pixel."""
    where, numbers = list(range(len(items))), {path: number for number, path in enumerate(items)}
    sets = Datasets(items, [[PILImage.create], [lambda path: numbers[path]]], splits=[where, where])
    return TfmdDL(sets.subset(split), after_item=[RandomResizedCrop(16), ToTensor()], **{"bs": 4, "num_workers": 0, **keywords})


def without_damaged(batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    keep = [row for row, number in enumerate(batch[1].tolist()) if number not in DAMAGE]
    return batch[0][keep], batch[1][keep]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("workers", [0, 2, 3])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_skipping_shrinks_a_training_batch_and_keeps_the_rest(
    trained: tuple[list[Path], list[Path]], drop_last: bool, shuffle: bool, workers: int, executor: str
) -> None:
    healthy, damaged = trained
    order = {"shuffle": shuffle, "drop_last": drop_last}
    expected = [without_damaged(batch) for batch in seeded(numbered(healthy, **order))]
    fast = fastload.accelerate(numbered(damaged, num_workers=workers, **order), bad_images="skip", executor=executor, threads=2)
    actual = list(seeded(fast))
    assert [y.tolist() for _, y in expected] == [y.tolist() for _, y in actual]
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for (a, _), (b, _) in zip(expected, actual, strict=True))
    assert ran_by_fastload(fast)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_each_skipped_file_is_counted_with_its_error_and_reported_once(
    trained: tuple[list[Path], list[Path]], executor: str
) -> None:
    fast = fastload.accelerate(numbered(trained[1]), bad_images="skip", executor=executor)
    with warned() as lines:
        list(seeded(fast)), list(seeded(fast))
    expected = {str(trained[1][number]) for number in DAMAGE}
    assert expected == set(fast._fl.skipped)
    assert "OSError: image file is truncated (8 bytes not processed)" in fast._fl.skipped[str(trained[1][3])]
    assert 4 == len(lines)
    assert all(any(path in line for line in lines) for path in expected)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_skipping_needs_one_good_image_in_a_batch(executor: str) -> None:
    items = [good()] * 4 + [file_of(FILES["F53"])] * 4
    fast = fastload.accelerate(numbered(items), bad_images="skip", executor=executor)
    epoch = seeded(fast)
    assert 4 == len(next(epoch)[1])
    with pytest.raises(EmptyBatch, match="every image of batch 1"):
        next(epoch)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_validation_set_never_skips(trained: tuple[list[Path], list[Path]], executor: str) -> None:
    fast = fastload.accelerate(numbered(trained[1], split=1), bad_images="skip", executor=executor)
    with pytest.raises(OSError, match="truncated") as caught:
        list(seeded(fast))
    assert str(trained[1][3]) in str(caught.value)
    assert {} == fast._fl.skipped


@pytest.mark.parametrize("executor", EXECUTORS)
def test_lack_of_memory_is_no_damaged_image(
    trained: tuple[list[Path], list[Path]], executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastload import pixels

    def apply(image: Any, todo: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(pixels, "apply", apply)
    fast = fastload.accelerate(numbered(trained[0]), bad_images="skip", executor=executor)
    with pytest.raises(MemoryError):
        list(seeded(fast))
    assert {} == fast._fl.skipped


def test_the_table_is_the_one_these_tests_were_written_for() -> None:
    assert (52, 19) == (len(DECODED), len(BROKEN))
    assert UnidentifiedImageError.__name__ == FILES["F53"]["expected"]["stock_exception"].split(".")[-1]
