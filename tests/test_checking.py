"""The check before training: each fault in a small tree of its own, found, and nothing else called broken."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from checked import SIZE, checked, encoded, kinds, one, picture, save, tree, turned
from PIL import Image

from fastload import checking
from fastload.checking import check
from fastload.inspecting import Use, inspect
from fastload.recipes import Target

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
