"""The check before training: each fault in a small tree of its own, found, and nothing else called broken."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastload import checking, inspecting
from fastload.checking import CheckReport, Finding, check
from fastload.commands import check as command
from fastload.commands import main
from fastload.errors import DataError
from fastload.inspecting import Seen, Use, inspect
from fastload.machine import Cpus
from fastload.recipes import Target

SIZE = 16
CASES = Path(__file__).resolve().parents[2] / "shared" / "cases"


def picture(seed: int, size: tuple[int, int] = (24, 20), mode: str = "RGB") -> Image.Image:
    bands = len(Image.new(mode, (1, 1)).getbands())
    array = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], bands), dtype=np.uint8)
    return Image.fromarray(array[..., 0] if bands == 1 else array, mode)


def save(path: Path, image: Image.Image, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


def tree(root: Path, count: int = 3) -> Path:
    """Two classes, `count` images each to train and to validate, no two alike."""
    for k, (split, label) in enumerate((s, c) for s in ("train", "valid") for c in ("cat", "dog")):
        for n in range(count):
            save(root / split / label / f"{n}.png", picture(100 * k + n))
    return root


def checked(root: Path, size: int = SIZE) -> CheckReport:
    return check(Target(str(root), "squish", size, bs=2, workers=0))


def kinds(report: CheckReport) -> list[tuple[str, str]]:
    return sorted((f.kind, f.severity) for f in report.findings)


def one(report: CheckReport, kind: str) -> Finding:
    (finding,) = (f for f in report.findings if f.kind == kind)
    return finding


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def turned(tag: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = tag
    return exif


# Nothing to find.


def test_a_sound_tree_has_no_findings(tmp_path: Path) -> None:
    report = checked(tree(tmp_path))
    assert ((), 12) == (report.findings, report.files)
    assert {"train": {"cat": 3, "dog": 3}, "valid": {"cat": 3, "dog": 3}} == report.classes
    assert "12 files opened" in str(report) and "nothing found" in str(report)


# Broken files.


def garbled(png: bytes) -> bytes:
    """The same with its first compressed bytes overwritten."""
    start = png.index(b"IDAT") + 4
    return png[:start] + b"\xff" * 40 + png[start + 40 :]


BROKEN: dict[str, Callable[[Path], object]] = {
    "truncated": lambda p: p.write_bytes(encoded(picture(1, (200, 200)), "JPEG")[:3000]),
    "not an image": lambda p: p.write_bytes(b"<!DOCTYPE html>"),
    "broken link": lambda p: p.symlink_to("nowhere.png"),
    "decompression bomb": lambda p: save(p, Image.new("1", (20000, 10000))),
    "unreadable": lambda p: p.write_bytes(garbled(encoded(picture(1), "PNG"))),
    "not a file": lambda p: os.mkfifo(p),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_found_and_the_others_are_checked(kind: str, tmp_path: Path) -> None:
    root = tree(tmp_path)
    path = root / "train" / "dog" / "bad.png"
    BROKEN[kind](path)
    report = checked(root)
    assert [(kind, str(path), "train", "dog")] == [(f.kind, f.path, f.split, f.label) for f in report.broken]
    assert (13, {"cat": 3, "dog": 4}) == (report.files, report.classes["train"])


def test_an_empty_file_is_called_empty(tmp_path: Path) -> None:
    (tree(tmp_path) / "valid" / "cat" / "void.jpg").touch()
    assert one(checked(tmp_path), "not an image").what.endswith("cannot identify image file: it is empty")


def test_a_message_holds_no_memory_address(tmp_path: Path) -> None:
    path = tree(tmp_path) / "valid" / "cat" / "bad.jpg"
    path.write_bytes(b"\xff\xd8\xff" + bytes(40))
    assert "0x" not in one(checked(tmp_path), "not an image").what


def test_a_file_that_vanishes_between_listing_and_reading_is_missing() -> None:
    (finding,) = inspect("gone/away.jpg", (Use("train"),)).findings
    assert ("missing", "broken") == (finding.kind, finding.severity)


def test_a_folder_of_nothing_but_broken_files_is_checked(tmp_path: Path) -> None:
    for path in tree(tmp_path).rglob("*.png"):
        path.write_bytes(b"broken")
    assert 12 == len(checked(tmp_path).broken)


def test_making_the_loaders_leaves_fastai_as_it_was(tmp_path: Path) -> None:
    from fastai.vision import core

    stock = core.load_image
    for path in tree(tmp_path).rglob("*.png"):
        path.write_bytes(b"broken")
    checked(tmp_path)
    assert stock is core.load_image
    with pytest.raises(OSError, match="cannot identify"):
        core.PILImage.create(next(tmp_path.rglob("*.png")))


def test_other_threads_meet_no_forgiveness_while_loaders_are_made(tmp_path: Path) -> None:
    from fastai.vision import core

    path, errors = tmp_path / "bad.png", []
    path.write_bytes(b"broken")

    def opens() -> None:
        try:
            core.PILImage.create(path)
        except OSError as err:
            errors.append(err)

    with checking._first_item_forgiven():
        thread = threading.Thread(target=opens)
        thread.start()
        thread.join()
    assert 1 == len(errors)


# Suspicious files: (file name, bytes, kind, severity).

_16BIT = Image.fromarray(np.arange(480, dtype=np.uint16).reshape(20, 24) * 100)
_DIM = Image.fromarray(np.arange(480, dtype=np.int32).reshape(20, 24) % 200)
_FLOAT = Image.fromarray(np.linspace(0, 1, 480, dtype=np.float32).reshape(20, 24))
SUSPICIOUS = [
    ("turned.jpg", encoded(picture(1), "JPEG", exif=turned(6)), "orientation", "suspicious"),
    ("turned.png", encoded(picture(1), "PNG", exif=turned(3)), "orientation", "suspicious"),
    ("deep.png", encoded(_16BIT, "PNG"), "high bit depth", "suspicious"),
    ("deep.tif", encoded(_DIM, "TIFF"), "high bit depth", "info"),
    ("float.tif", encoded(_FLOAT, "TIFF"), "high bit depth", "suspicious"),
    ("alpha.png", encoded(picture(1, mode="RGBA"), "PNG"), "alpha", "suspicious"),
    ("opaque.png", encoded(Image.new("RGBA", (24, 20), (1, 2, 3, 255)), "PNG"), "alpha", "info"),
    ("clear.png", encoded(picture(1).quantize(), "PNG", transparency=0), "alpha", "suspicious"),
    ("inks.jpg", encoded(picture(1, mode="CMYK"), "JPEG"), "CMYK", "suspicious"),
    ("moving.gif", encoded(picture(1), "GIF", save_all=True, append_images=[picture(2)]), "several frames", "suspicious"),
    ("pages.tif", encoded(picture(1), "TIFF", save_all=True, append_images=[picture(2)]), "several frames", "suspicious"),
    ("phone.jpg", encoded(picture(1), "MPO", save_all=True, append_images=[picture(2)]), "several frames", "info"),
    ("misnamed.jpg", encoded(picture(1), "PNG"), "wrong extension", "suspicious"),
    ("tiny.png", encoded(picture(1, (9, 7)), "PNG"), "tiny", "suspicious"),
    ("low.png", encoded(picture(1, (40, 7)), "PNG"), "small on one side", "info"),
    ("line.png", encoded(picture(1, (1, 40)), "PNG"), "one-pixel side", "suspicious"),
    ("gray.png", encoded(picture(1, mode="L"), "PNG"), "gray", "info"),
]


@pytest.mark.parametrize(("name", "data", "kind", "severity"), SUSPICIOUS, ids=[s[0] for s in SUSPICIOUS])
def test_what_stock_misreads_is_found(name: str, data: bytes, kind: str, severity: str, tmp_path: Path) -> None:
    path = tree(tmp_path) / "valid" / "cat" / name
    path.write_bytes(data)
    report = checked(tmp_path)
    finding = one(report, kind)
    assert (severity, str(path), "valid", "cat") == (finding.severity, finding.path, finding.split, finding.label)
    assert finding.stock_does
    assert () == report.broken
    assert {str(path)} == {f.path for f in report.findings}


def test_orientation_is_no_finding_where_stock_honours_it(tmp_path: Path) -> None:
    path = tree(tmp_path) / "valid" / "cat" / "turned.tif"
    path.write_bytes(encoded(picture(1), "TIFF", exif=turned(6)))
    assert [] == kinds(checked(tmp_path))


def test_damaged_metadata_is_no_fault_of_an_image_that_decodes(tmp_path: Path) -> None:
    path = tree(tmp_path) / "valid" / "cat" / "odd.jpg"
    path.write_bytes(encoded(picture(1), "JPEG", exif=b"Exif\x00\x00II*\x00\x08\x00\x00\x00\xff\xff" + bytes(5)))
    assert () == checked(tmp_path).broken


def test_pixels_above_pillows_limit_are_told_without_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    save(tree(tmp_path) / "valid" / "cat" / "large.png", picture(1, (40, 30)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    assert [("huge", "suspicious")] == kinds(checked(tmp_path))
    assert [] == [w for w in recwarn if issubclass(w.category, Image.DecompressionBombWarning)]


def test_gray_images_alone_are_no_finding(tmp_path: Path) -> None:
    for k, path in enumerate(tree(tmp_path).rglob("*.png")):
        save(path, picture(k, mode="L"))
    assert [] == kinds(checked(tmp_path))


def test_a_later_frame_may_be_damaged(tmp_path: Path) -> None:
    data = encoded(picture(1), "GIF", save_all=True, append_images=[picture(2)])
    path = tree(tmp_path) / "valid" / "cat" / "cut.gif"
    path.write_bytes(data[: len(data) - 100])
    assert () == checked(tmp_path).broken


def test_an_image_is_tiny_against_the_batch_not_the_presized_item(tmp_path: Path) -> None:
    report = check(Target(str(tree(tmp_path)), "presize", SIZE, bs=2, workers=0))
    assert [] == [f for f in report.findings if f.kind == "tiny"]


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


# Loaders that fastload doesn't recognise.


def test_files_are_checked_where_an_item_transform_is_not_known(tmp_path: Path) -> None:
    from fastai.vision.all import ImageDataLoaders, Resize, Transform

    class Own(Transform):
        def encodes(self, x):  # type: ignore[no-untyped-def]  # fasttransform would resolve the names as types
            return x

    root = tree(tmp_path)
    (root / "valid" / "dog" / "bad.jpg").write_bytes(b"bad")
    report = check(ImageDataLoaders.from_folder(root, item_tfms=[Own(), Resize(SIZE)], bs=2, num_workers=0))
    assert (13, 1) == (report.files, len(report.broken))
    assert {"cat": 3, "dog": 3} == report.classes["train"]
    assert any("item transform Own" in note for note in report.notes)


def test_files_are_checked_where_users_open_them(tmp_path: Path) -> None:
    from fastai.vision.all import DataLoader, DataLoaders, L

    paths = sorted(tree(tmp_path).rglob("*.png"))
    paths[3].write_bytes(b"bad")
    dls = DataLoaders(*(DataLoader(L(some), bs=2, num_workers=0) for some in (paths[:6], paths[6:])))
    report = check(dls)
    assert [str(paths[3])] == [f.path for f in report.broken]
    assert any("items that are paths" in note for note in report.notes)


def test_data_without_paths_is_said_to_be_unchecked() -> None:
    from fastai.vision.all import DataLoader, DataLoaders

    report = check(DataLoaders(*(DataLoader(list(range(4)), bs=2, num_workers=0) for _ in range(2))))
    assert (0, ()) == (report.files, report.findings)
    assert any("no file was checked" in note for note in report.notes)


def test_images_in_memory_are_said_to_be_unchecked(tmp_path: Path) -> None:
    from fastai.vision.all import DataBlock, ImageBlock, IndexSplitter, Resize

    block = DataBlock(ImageBlock, splitter=IndexSplitter([1]), item_tfms=Resize(SIZE))
    report = check(block.dataloaders([np.zeros((20, 20, 3), np.uint8)] * 3, bs=1, num_workers=0))
    assert "train: 2 images not checked: an image is given as ndarray, not as a path" in report.notes


def test_a_getter_that_raises_is_broken(tmp_path: Path) -> None:
    from fastai.vision.all import CategoryBlock, DataBlock, ImageBlock, IndexSplitter, Resize

    paths = [save(tmp_path / f"{k}.png", picture(k)) for k in range(4)]
    table = {"0.png": "a", "1.png": "a", "2.png": "b"}
    block = DataBlock(
        (ImageBlock, CategoryBlock), get_y=lambda p: table[p.name], splitter=IndexSplitter([3]), item_tfms=Resize(SIZE)
    )
    finding = one(check(block.dataloaders(paths, bs=1, num_workers=0)), "no label")
    assert ("broken", "the label of item 0 can't be had: KeyError: '3.png'") == (finding.severity, finding.what)


def test_what_is_no_loader_is_an_error() -> None:
    with pytest.raises(DataError, match="found int"):
        check(3)


# How the work is done.


def test_no_more_files_are_open_than_there_are_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, now, most = threading.Lock(), 0, 0

    def counted(path: str, uses: Any) -> Seen:
        nonlocal now, most
        with lock:
            now, most = now + 1, max(most, now + 1)
        seen = inspect(path, uses)
        with lock:
            now -= 1
        return seen

    monkeypatch.setattr(checking, "inspect", counted)
    monkeypatch.setattr(checking, "usable_cpus", lambda: Cpus(3, "asked", ()))
    assert 60 == checked(tree(tmp_path, count=15)).files
    assert 1 <= most <= 3


def test_each_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    stock = inspecting._read
    monkeypatch.setattr(inspecting, "_read", lambda path: (reads.append(path), stock(path))[1])
    checked(tree(tmp_path))
    assert sorted(str(p) for p in tmp_path.rglob("*.png")) == sorted(reads)


def test_progress_goes_from_none_to_all(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    check(Target(str(tree(tmp_path)), size=SIZE), progress=lambda *call: calls.append(call))
    assert [(k, 12) for k in range(13)] == calls


def test_an_interrupt_ends_the_check(tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(Target(str(tree(tmp_path)), size=SIZE), progress=interrupt)
    assert not any(thread.name.startswith("fastload-check") for thread in threading.enumerate())


def test_random_numbers_are_as_before(tmp_path: Path) -> None:
    import random

    import torch
    from fastai.vision.all import ImageDataLoaders, RandomResizedCrop

    dls = ImageDataLoaders.from_folder(tree(tmp_path), item_tfms=RandomResizedCrop(SIZE), bs=2, num_workers=0)
    before = (random.getstate(), torch.get_rng_state().tolist(), dls.train.rng.getstate())
    check(dls)
    assert before == (random.getstate(), torch.get_rng_state().tolist(), dls.train.rng.getstate())


# The report.


def many(count: int) -> CheckReport:
    findings = tuple(Finding("tiny", "suspicious", f"{k}.jpg", "1x1", "enlarges it") for k in range(count))
    return CheckReport(findings, {}, count, 1.0)


def test_text_lists_twenty_files_of_a_kind() -> None:
    text = str(many(33))
    assert "19.jpg" in text and "20.jpg" not in text
    assert "... and 13 more (use --json for all)" in text
    assert "more" not in str(many(20))


def test_json_has_everything() -> None:
    found = json.loads(many(33).to_json())
    assert (33, 33) == (len(found["findings"]), found["counts"]["suspicious"])
    assert {"kind", "severity", "path", "what", "stock_does", "split", "label"} == set(found["findings"][0])


def test_a_finding_has_a_known_severity() -> None:
    with pytest.raises(DataError, match="'bad'"):
        Finding("kind", "bad", None, "", "")


def test_odd_names_are_printed_in_one_line_and_survive_in_json(tmp_path: Path) -> None:
    folder = tree(tmp_path) / "train" / "cat"
    paths = [
        os.fsencode(folder / "new\nline.png"),
        os.fsencode(folder) + b"/latin\xe9.png",
        os.fsencode(folder / "\x1b[31m.png"),
    ]
    for path in paths:
        with open(path, "wb") as file:
            file.write(b"bad")
    report = checked(tmp_path)
    assert sorted(paths) == sorted(os.fsencode(f["path"]) for f in json.loads(report.to_json())["findings"])
    str(report).encode("utf-8")
    assert "new\\nline.png'" in str(report) and "latin\\udce9.png'" in str(report) and "\x1b" not in str(report)


# The command.


def run(*args: str) -> int:
    folder = ["--size", str(SIZE), "--recipe", "squish", "--bs", "2", "--num-workers", "0"]
    return main(["check", *args, *([] if ".py:" in args[0] else folder)])


def test_command_exits_0_where_nothing_is_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tree(tmp_path) / "train" / "cat" / "turned.jpg", picture(1), exif=turned(6))
    assert 0 == run(str(tmp_path))
    shown = capsys.readouterr()
    assert "suspicious: orientation (1)" in shown.out
    assert "13 of 13 files" in shown.err and "\r" not in shown.err


def test_command_exits_3_where_something_is_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree(tmp_path) / "train" / "cat" / "bad.jpg").write_bytes(b"bad")
    assert 3 == run(str(tmp_path))
    assert "broken: not an image (1)" in capsys.readouterr().out


def test_command_prints_one_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tree(tmp_path) / "train" / "cat" / "bad.jpg"
    path.write_bytes(b"bad")
    assert 3 == run(str(tmp_path), "--json")
    found = json.loads(capsys.readouterr().out)
    assert [str(path)] == [f["path"] for f in found["findings"]]
    assert (13, 1) == (found["files"], found["counts"]["broken"])


TROUBLE: dict[str, Callable[[Path], object]] = {
    "no such folder": lambda root: None,
    "no image": lambda root: root.mkdir(),
    "nothing to train on": lambda root: (
        (root / "train").mkdir(parents=True),
        save(root / "valid" / "a" / "1.png", picture(1)),
    ),
}


@pytest.mark.parametrize("trouble", TROUBLE)
def test_command_exits_1_in_one_line_where_there_is_nothing_to_check(
    trouble: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    TROUBLE[trouble](tmp_path / "set")
    assert 1 == run(str(tmp_path / "set"))
    lines = capsys.readouterr().err.splitlines()
    assert (1, True) == (len(lines), lines[-1].startswith("fastload check: "))


def function(root: Path, body: str) -> str:
    (root / "train.py").write_text(f"from fastai.vision.all import *\ndef get_dls():\n    {body}\n")
    return f"{root / 'train.py'}:get_dls"


def test_command_checks_a_function_whose_first_item_is_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tree(tmp_path / "set") / "train").rglob("*.png"):
        path.write_bytes(b"bad")
    body = f"return ImageDataLoaders.from_folder({str(tmp_path / 'set')!r}, item_tfms=Resize(16), bs=2, num_workers=0)"
    assert 3 == run(function(tmp_path, body), "--json")
    assert 6 == json.loads(capsys.readouterr().out)["counts"]["broken"]


def test_what_a_function_prints_is_no_part_of_the_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = f"print('hello'); return ImageDataLoaders.from_folder({str(tree(tmp_path / 'set'))!r}, item_tfms=Resize(16), bs=2)"
    assert 0 == run(function(tmp_path, body), "--json")
    assert 12 == json.loads(capsys.readouterr().out)["files"]


def test_command_exits_1_where_the_function_raises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 1 == run(function(tmp_path, "raise RuntimeError('of its own\\naccord')"))
    assert "RuntimeError: of its own accord" in capsys.readouterr().err


def test_progress_line_is_redrawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, clock = Terminal(), iter((100.0, 101.0, 101.01, 102.0))
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(command.time, "monotonic", lambda: next(clock))
    show = command._progress()
    for done in (0, 1, 2, 3):
        show(done, 3)
    lines = [line.rstrip() for line in terminal.getvalue().split("\r")]
    shown = ["0 of 3 files, 0 files/s, 0 s", "1 of 3 files, 1 files/s, 2 s left", "3 of 3 files, 2 files/s, 2 s"]
    assert ["", *shown] == lines


# The awkward files beside the checkout.


def _awkward() -> list[Any]:
    if not (CASES / "files.json").is_file():
        return []
    rows = json.loads((CASES / "files.json").read_text())["cases"]
    return [row for row in rows if row["expected"]["outcome"] in ("decodes", "error")]


@pytest.mark.skipif(not CASES.is_dir(), reason=f"the shared cases are not at {CASES}")
@pytest.mark.parametrize(
    "use", [Use("train"), Use("train", mode="L"), Use("train", mode="L", mask=True)], ids=["RGB", "L", "mask"]
)
def test_awkward_files_are_broken_exactly_where_stock_raises(use: Use) -> None:
    rows = _awkward()
    assert len(rows) > 50
    wrong = []
    for row in rows:
        seen = inspect(str(CASES / row["file"]), (use,))
        broken = any(f.severity == "broken" for f in seen.findings)
        if broken != (row["expected"]["outcome"] == "error") or any(f.kind == "not examined" for f in seen.findings):
            wrong.append((row["id"], [f"{f.kind}: {f.what}" for f in seen.findings]))
    assert [] == wrong


@pytest.mark.skipif(not CASES.is_dir(), reason=f"the shared cases are not at {CASES}")
def test_awkward_files_are_checked_together(tmp_path: Path) -> None:
    root = tree(tmp_path)
    expected = set()
    for row in _awkward():
        link = root / "train" / "dog" / Path(row["file"]).name
        link.symlink_to(CASES / row["file"])
        expected |= {str(link)} if row["expected"]["outcome"] == "error" else set()
    assert expected == {f.path for f in checked(root).broken}
