"""Labels, splits and masks as the checker sees them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checked import SIZE, checked, kinds, one, picture, save, tree
from PIL import Image

from fastload import inspecting
from fastload.checking import check

# The same content.


def test_one_image_in_both_splits_is_a_leak(tmp_path: Path) -> None:
    root = tree(tmp_path)
    (root / "valid" / "cat" / "copy.png").write_bytes((root / "train" / "cat" / "1.png").read_bytes())
    report = checked(root)
    assert [("leak", "suspicious")] == kinds(report)
    assert str(root / "valid" / "cat" / "copy.png") == report.findings[0].path
    assert str(root / "train" / "cat" / "1.png") in report.findings[0].what


def test_one_image_under_two_labels_is_a_conflict(tmp_path: Path) -> None:
    root = tree(tmp_path)
    os.link(root / "train" / "cat" / "1.png", root / "train" / "dog" / "copy.png")
    assert [("label conflict", "suspicious")] == kinds(checked(root))


def test_one_image_twice_is_a_duplicate(tmp_path: Path) -> None:
    root = tree(tmp_path)
    (root / "train" / "cat" / "copy.png").symlink_to("1.png")
    report = checked(root)
    assert [("duplicate", "suspicious")] == kinds(report)
    assert str(root / "train" / "cat" / "copy.png") == report.findings[0].path


def test_one_path_in_both_splits_is_a_leak_and_decoded_once(tmp_path: Path) -> None:
    from fastai.vision.all import DataBlock, ImageBlock, IndexSplitter, Resize

    path = save(tmp_path / "a.png", picture(1))
    block = DataBlock(ImageBlock, splitter=IndexSplitter([1]), item_tfms=Resize(SIZE))
    report = check(block.dataloaders([path, path], bs=1, num_workers=0))
    assert ([("leak", "suspicious")], 1) == (kinds(report), report.files)
    assert f"the same file as {path} in train" == report.findings[0].what


def test_broken_files_are_not_compared(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.jpg"):
        (tree(tmp_path) / "train" / "cat" / name).touch()
    assert [("not an image", "broken")] * 2 == kinds(checked(tmp_path))


# Labels.


def test_unbalanced_classes_are_found(tmp_path: Path) -> None:
    root = tree(tmp_path, count=2)
    for k in range(19):
        save(root / "train" / "cat" / f"more{k}.png", picture(1000 + k))
    assert "cat has 21 items, dog has 2" in one(checked(root), "unbalanced classes").what


def test_a_class_of_one_item_is_found(tmp_path: Path) -> None:
    root = tree(tmp_path)
    for split in ("train", "valid"):
        save(root / split / "owl" / "1.png", picture(hash(split) % 999 + 2000))
    report = checked(root)
    assert [("class of one item", "suspicious")] == kinds(report)
    assert "owl" == report.findings[0].label


def test_a_class_only_in_train_is_found(tmp_path: Path) -> None:
    root = tree(tmp_path)
    for k in range(2):
        save(root / "train" / "owl" / f"{k}.png", picture(2000 + k))
    assert [("class only in train", "suspicious")] == kinds(checked(root))


def test_a_class_only_in_valid_is_broken_where_stock_raises(tmp_path: Path) -> None:
    root = tree(tmp_path)
    path = save(root / "valid" / "owl" / "1.png", picture(2000))
    report = checked(root)
    assert [("class only in valid", "broken", str(path))] == [(f.kind, f.severity, f.path) for f in report.findings]


def test_a_class_only_in_valid_is_suspicious_where_stock_goes_on(tmp_path: Path) -> None:
    from fastai.vision.all import ImageDataLoaders, Resize

    save(tree(tmp_path) / "valid" / "owl" / "1.png", picture(2000))
    names = ["cat", "dog", "owl"]
    dls = ImageDataLoaders.from_folder(tmp_path, vocab=names, item_tfms=Resize(SIZE), bs=2, num_workers=0)
    assert [("class only in valid", "suspicious")] == kinds(check(dls))


def test_empty_class_folders_are_found(tmp_path: Path) -> None:
    root = tree(tmp_path)
    (root / "train" / "owl").mkdir()
    (root / "valid" / "notes").mkdir()
    (root / "valid" / "notes" / "read.me").touch()
    (root / "train" / ".hidden").mkdir()
    found = [(f.kind, f.severity, f.path) for f in checked(root).findings]
    folders = (("suspicious", root / "train" / "owl"), ("info", root / "valid" / "notes"))
    assert [("empty folder", severity, str(path)) for severity, path in folders] == found


def test_neighbours_of_the_target_are_left_alone(tmp_path: Path) -> None:
    root = tree(tmp_path / "here")
    save(root / "train" / "loose.png", picture(5000))
    (tmp_path / "elsewhere").mkdir()
    assert not any(f.kind == "empty folder" for f in checked(root).findings)


def test_several_labels_are_counted_each(tmp_path: Path) -> None:
    from fastai.vision.all import DataBlock, ImageBlock, IndexSplitter, MultiCategoryBlock, Resize

    paths = [save(tmp_path / name / f"{k}.png", picture(k)) for k, name in enumerate(("a b", "a", "b c", "a d"))]
    block = DataBlock(
        (ImageBlock, MultiCategoryBlock),
        get_y=lambda p: p.parent.name.split(),
        splitter=IndexSplitter([3]),
        item_tfms=Resize(SIZE),
    )
    report = check(block.dataloaders(paths, bs=1, num_workers=0))
    assert {"train": {"a": 2, "b": 2, "c": 1}, "valid": {"a": 1, "d": 1}} == report.classes
    assert [("class only in valid", "broken")] == [(f.kind, f.severity) for f in report.broken]


# Masks.


def masks(root: Path, mask: Image.Image) -> Any:
    """Loaders of three images whose masks are alike."""
    from fastai.vision.all import DataBlock, ImageBlock, IndexSplitter, MaskBlock, Resize

    for k in range(3):
        save(root / "images" / f"{k}.png", picture(k))
        save(root / "masks" / f"{k}.png", mask)
    block = DataBlock(
        (ImageBlock, MaskBlock),
        get_y=lambda p: root / "masks" / p.name,
        splitter=IndexSplitter([2]),
        item_tfms=Resize(SIZE),
    )
    return block.dataloaders(sorted((root / "images").iterdir()), bs=1, num_workers=0)


def test_palette_masks_are_found_and_their_values_are_stocks(tmp_path: Path) -> None:
    from fastai.vision.core import PILMask

    mask = Image.fromarray(np.arange(480, dtype=np.uint8).reshape(20, 24) % 4, "P")
    mask.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0, 3, 3, 3])
    report = check(masks(tmp_path, mask))
    assert [("mask values", "suspicious")] * 3 == kinds(report)
    stock = np.asarray(PILMask.create(tmp_path / "masks" / "0.png"))[0, 1]
    assert f"a palette mask: index 1 becomes {stock}" == report.findings[0].what
    assert 6 == report.files


@pytest.mark.parametrize(
    ("mode", "found"), [("L", []), ("1", [("mask values", "suspicious")] * 3), ("RGB", [("mask values", "suspicious")] * 3)]
)
def test_masks_of_other_modes(mode: str, found: list[tuple[str, str]], tmp_path: Path) -> None:
    mask = Image.new("1", (24, 20)) if mode == "1" else picture(1, mode=mode)
    assert found == kinds(check(masks(tmp_path, mask)))


def test_palette_luminance_is_pillows() -> None:
    image, rng = Image.new("P", (256, 1)), np.random.default_rng(3)
    image.putdata(list(range(256)))
    image.putpalette(rng.integers(0, 256, 768).tolist())
    stock = np.asarray(image.convert("L"))[0].tolist()
    assert [(k, luma) for k, luma in enumerate(stock) if k != luma] == inspecting._moved(image)


def test_a_broken_mask_is_found(tmp_path: Path) -> None:
    dls = masks(tmp_path, picture(1, mode="L"))
    (tmp_path / "masks" / "2.png").write_bytes(b"no mask")
    assert [str(tmp_path / "masks" / "2.png")] == [f.path for f in check(dls).broken]
