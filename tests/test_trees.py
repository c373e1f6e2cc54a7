"""Awkward folder trees: what stock fastai lists, labels, splits and loads is what fastload's import swap does."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import fastai.vision.all as stock
import pytest
import torch
from cases import EXECUTORS, needs_shared, outcome, ran_by_fastload, seeded, table, tree, trees
from fastcore.foundation import L
from sidebyside import seed_all

import fastload.vision as fast
from fastload.testing import assert_same_batches

pytestmark = needs_shared

EXPECTED = {row["file"].split()[-1]: row["expected"] for row in table() if row["kind"] == "tree"}
SPLIT = ("empty", "grand")  # these have folders train and valid
# Where every image opens, whatever the split: `links` has a broken one, `nested` a label that training may lack.
SOUND = [name for name in EXPECTED if name not in ("links", "nested")]


@pytest.fixture(scope="module")
def forest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every tree of the table, not to be changed."""
    dest = tmp_path_factory.mktemp("trees")
    trees().make(str(dest))
    return {name: dest / name for name in EXPECTED}


def from_folder(fastai: ModuleType, path: Path, **keywords: Any) -> Any:
    """`ImageDataLoaders.from_folder` of stock or of the swap, from one seed."""
    seed_all(1)
    how = {"valid": "valid"} if path.name in SPLIT else {"valid_pct": 0.3, "seed": 1}
    keywords = {"item_tfms": fastai.Resize(16), "bs": 4, "num_workers": 0, "device": "cpu", **how, **keywords}
    return fastai.ImageDataLoaders.from_folder(path, **keywords)


def from_block(fastai: ModuleType, path: Path, **keywords: Any) -> Any:
    """`DataBlock.dataloaders` of stock or of the swap, from one seed."""
    seed_all(1)
    folders, splitter = (["train", "valid"], fastai.GrandparentSplitter()) if path.name in SPLIT else (None, None)
    block = fastai.DataBlock(
        blocks=(fastai.ImageBlock, fastai.CategoryBlock),
        get_items=lambda folder: fastai.get_image_files(folder, folders=folders),
        get_y=fastai.parent_label,
        splitter=splitter or fastai.RandomSplitter(0.3, seed=1),
        item_tfms=fastai.RandomResizedCrop(16),
    )
    return block.dataloaders(path, bs=4, num_workers=0, device="cpu", **keywords)


MAKERS: tuple[Callable[..., Any], ...] = (from_folder, from_block)


def listed(fastai: ModuleType, items: list[Path], path: Path, valid: int, **keywords: Any) -> Any:
    """Loaders of exactly these items, in this order, the last `valid` for validation; training is not shuffled."""
    seed_all(1)
    block = fastai.DataBlock(
        blocks=(fastai.ImageBlock, fastai.CategoryBlock),
        get_items=lambda folder: L(items),
        get_y=fastai.parent_label,
        splitter=fastai.IndexSplitter(list(range(len(items) - valid, len(items)))),
        item_tfms=fastai.Resize(16, method="squish"),
    )
    return block.dataloaders(path, bs=4, num_workers=0, device="cpu", shuffle=False, **keywords)


def errors(items: list[Path], path: Path, valid: int, executor: str, which: int = 0) -> tuple[Exception, Exception]:
    """What stock and fastload raise for these items, after equal batches."""
    ours = listed(fast, items, path, valid, executor=executor)[which]
    (before, expected), (batches, actual) = outcome(listed(stock, items, path, valid)[which]), outcome(ours)
    assert_same_batches(before, batches)
    assert expected is not None and actual is not None
    return expected, actual


# What is listed.


@pytest.mark.parametrize("name", EXPECTED)
def test_files_are_listed_in_stocks_order_and_as_in_the_table(name: str, forest: dict[str, Path]) -> None:
    files = fast.get_image_files(forest[name])
    assert list(stock.get_image_files(forest[name])) == list(files)
    assert sorted(EXPECTED[name]["listed"]) == sorted(ascii(str(file.relative_to(forest[name])))[1:-1] for file in files)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("name", [*SOUND, "nested"])
def test_items_vocab_and_splits_are_stocks(name: str, make: Callable[..., Any], forest: dict[str, Path]) -> None:
    expected, actual = make(stock, forest[name]), make(fast, forest[name])
    for a, b in zip(expected.loaders, actual.loaders, strict=True):
        assert list(a.items) == list(b.items)
        assert list(a.vocab) == list(b.vocab)
        assert list(a.dataset.splits) == list(b.dataset.splits)
    assert (EXPECTED[name]["n_train"], EXPECTED[name]["n_valid"]) == (len(actual.train_ds), len(actual.valid_ds))


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("name", SOUND)
def test_the_vocab_is_the_tables(name: str, make: Callable[..., Any], forest: dict[str, Path]) -> None:
    assert EXPECTED[name]["vocab"] == [ascii(label)[1:-1] for label in make(fast, forest[name]).vocab]


# What is loaded.


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("name", SOUND)
def test_batches_are_stocks(name: str, make: Callable[..., Any], executor: str, forest: dict[str, Path]) -> None:
    expected, actual = make(stock, forest[name]), make(fast, forest[name], executor=executor, threads=2)
    for which, number in ((0, 3), (0, 4), (1, 3)):
        count = len(expected[which])
        assert count == assert_same_batches(seeded(expected[which], number), seeded(actual[which], number))
        assert ran_by_fastload(actual[which])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_stems_that_differ_in_case_or_suffix_alone_are_fourteen_pictures(executor: str, forest: dict[str, Path]) -> None:
    dls = listed(fast, sorted(fast.get_image_files(forest["stems"])), forest["stems"], 0, executor=executor)
    colours = torch.cat([x for x, _ in dls.train])[:, :, 0, 0]
    assert 14 == len({tuple(colour.tolist()) for colour in colours})


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_class_without_pictures_uses_up_no_number(executor: str, forest: dict[str, Path]) -> None:
    dls = from_folder(fast, forest["empty"], executor=executor)
    expected = [["a", "c", "d"].index(item.parent.name) for item in dls.valid.items]
    assert expected == torch.cat([y for _, y in dls.valid]).tolist()


# What cannot be loaded.


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_broken_link_is_named_as_in_stock(executor: str, forest: dict[str, Path]) -> None:
    files = sorted(fast.get_image_files(forest["links"]))
    items = [file for file in files if file.name != "broken.png"]
    broken = forest["links"] / "dog" / "broken.png"
    expected, actual = errors([*items[:9], broken, *items[9:]], forest["links"], 0, executor)
    assert (FileNotFoundError, str(expected)) == (type(actual), str(actual))
    assert str(broken) == actual.filename  # type: ignore[attr-defined]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_link_keeps_the_label_of_the_folder_it_lies_in(executor: str, forest: dict[str, Path]) -> None:
    folder = forest["links"]
    items = [folder / "cat" / "1.png", folder / "cat" / "link_to_0.png", folder / "dog" / "hardlink_1.png"]
    items.append(folder / "dog" / "cats_again" / "1.png")
    dls = listed(fast, items, folder, 0, executor=executor)
    ((x, y),) = list(dls.train)
    assert ["cat", "cat", "dog", "cats_again"] == [dls.vocab[k] for k in y]
    real, _, hard, through = x.tolist()
    assert real == hard == through


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("odd", [b"latin1_\xe9.png", b"new\nline.png", "图片.png".encode(), b"quo\"te's.png"])
def test_a_file_with_an_odd_name_that_vanished_is_named_as_in_stock(odd: bytes, executor: str, tmp_path: Path) -> None:
    folder = tree(tmp_path, "names")
    items = sorted(fast.get_image_files(folder), key=os.fsencode)
    gone = next(item for item in items if os.fsencode(item.name) == odd)
    items.append(items.pop(items.index(gone)))
    gone.unlink()
    expected, actual = errors(items, folder, 0, executor)
    assert (FileNotFoundError, str(expected), str(gone)) == (type(actual), str(actual), actual.filename)  # type: ignore[attr-defined]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("odd", [b"latin1_\xe9.png", b"new\nline.png", b"%s %d.png", b"{brace}[1].png"])
def test_a_damaged_file_with_an_odd_name_is_named_whole(odd: bytes, executor: str, tmp_path: Path) -> None:
    folder = tree(tmp_path, "names")
    items = sorted(fast.get_image_files(folder), key=os.fsencode)
    damaged = next(item for item in items if os.fsencode(item.name) == odd)
    items.append(items.pop(items.index(damaged)))
    damaged.write_bytes(damaged.read_bytes()[:60])
    expected, actual = errors(items, folder, 0, executor)
    assert type(expected) is type(actual)
    assert f"{expected} [file: {damaged}]" == str(actual)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_label_that_training_lacks_is_named_as_in_stock(executor: str, forest: dict[str, Path]) -> None:
    files = sorted(fast.get_image_files(forest["nested"]), key=lambda file: (file.parent.name == "cat", file))
    expected, actual = errors(files, forest["nested"], 2, executor, which=1)
    assert (KeyError, str(expected)) == (type(actual), str(actual))
    assert "Label 'cat' was not included in the training dataset" in str(actual)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_sizes_that_do_not_fit_are_told_as_in_stock(executor: str, forest: dict[str, Path]) -> None:
    path = forest["sizes"]
    dls = from_folder(stock, path, item_tfms=None), from_folder(fast, path, item_tfms=None, executor=executor)
    (_, expected), (_, actual) = (outcome(loaders.train) for loaders in dls)
    assert (type(expected), str(expected)) == (type(actual), str(actual))
    assert "has shape: torch.Size([3, " in str(actual)


# What changes meanwhile.


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_changed_file_gives_its_new_pixels_in_the_next_epoch(executor: str, tmp_path: Path) -> None:
    folder = tree(tmp_path, "change")
    items = sorted(fast.get_image_files(folder))
    loaders = listed(stock, items, folder, 0), listed(fast, items, folder, 0, executor=executor)
    for dls in loaders:
        dls.train.get_idxs = lambda: [0, 1, 4, 5, 6, 7]  # cat/2 and cat/3 will be gone
    assert_same_batches(*(dls.train for dls in loaders))
    colour = trees().mutate(str(folder))["same_stat_other_pixels"]
    after = [list(dls.train) for dls in loaders]
    assert_same_batches(*after)
    assert list(colour) == (after[1][0][0][0, :, 0, 0] * 255).round().int().tolist()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_moved_file_has_the_label_of_its_new_folder(executor: str, tmp_path: Path) -> None:
    folder = tree(tmp_path, "change")
    trees().mutate(str(folder))
    items = sorted(fast.get_image_files(folder))
    dls = listed(fast, items, folder, 0, executor=executor)
    assert 2 == assert_same_batches(listed(stock, items, folder, 0).train, dls.train)
    labels = torch.cat([y for _, y in dls.train]).tolist()
    assert "dog" == dls.vocab[labels[items.index(folder / "dog" / "3b.png")]]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_file_deleted_after_listing_is_named_as_in_stock(executor: str, tmp_path: Path) -> None:
    folder = tree(tmp_path, "change")
    items = sorted(fast.get_image_files(folder))
    trees().mutate(str(folder))
    expected, actual = errors(items, folder, 0, executor)
    assert (FileNotFoundError, str(expected)) == (type(actual), str(actual))
    assert str(folder / "cat" / "2.png") == actual.filename  # type: ignore[attr-defined]
