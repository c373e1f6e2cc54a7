"""Ordinary JPEG decoded no further than its crop: Pillow's pixels of that crop, or nothing."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastload import pixels
from fastload.executors import _early
from fastload.source import Record


def picture(mode: str = "RGB", size: tuple[int, int] = (83, 61), **how: Any) -> bytes:
    rng = np.random.default_rng(3)
    shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], len(mode))
    smooth = np.cumsum(rng.integers(-9, 10, shape), axis=1) % 256
    file = io.BytesIO()
    Image.fromarray(smooth.astype(np.uint8), mode).save(file, "JPEG", **{"quality": 88, **how})
    return file.getvalue()


def record(data: bytes) -> Record:
    return Record("jpeg", data, "picture.jpg")


def by_pillow(data: bytes, todo: list[pixels.Step], mode: str = "RGB") -> Any:
    return np.asarray(pixels.apply(pixels.load(record(data), mode), todo))


def early(data: bytes, todo: list[pixels.Step], mode: str = "RGB") -> Any:
    """The same by `_early`; None where it leaves the file to the usual way."""
    one = record(data)
    size = _early.measure(one) or Image.open(io.BytesIO(data)).size
    found = _early.decode(one, mode, size, todo)
    return None if found is None else np.asarray(pixels.apply(*found))


def crop(box: tuple[int, int, int, int]) -> list[pixels.Step]:
    return [pixels.Window(box)]


ORDINARY = {
    "444": picture(subsampling=0),
    "422": picture(subsampling=1),
    "420": picture(subsampling=2),
    "gray": picture("L"),
    "restarts": picture(restart_marker_blocks=3),
    "one_pixel": picture(size=(1, 1)),
    "narrow": picture(size=(3, 90)),
}


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + (2 + len(body)).to_bytes(2, "big") + body


def among(segments: bytes, data: bytes = ORDINARY["420"]) -> bytes:
    """`data` with `segments` after its JFIF header."""
    at = 4 + int.from_bytes(data[4:6], "big")
    return data[:at] + segments + data[at:]


ORDINARY["colour_profile"] = picture(icc_profile=bytes(range(200)))
ORDINARY["exif"] = picture(exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0")
ORDINARY["photoshop"] = among(segment(0xED, b"Photoshop 3.0\x008BIM\x03\xed\0\0\0\0\0\x10" + bytes(16)))
ORDINARY["without_jfif"] = ORDINARY["444"].replace(ORDINARY["444"][2:20], b"", 1)
PILLOWS = {
    "progressive": picture(progressive=True),
    "cmyk": picture("CMYK"),
    "rgb_with_adobe_marker": picture(keep_rgb=True),
    "layout_440": picture(subsampling=0).replace(b"\x03\x01\x11\x00\x02\x11", b"\x03\x01\x12\x00\x02\x11"),
    "truncated": ORDINARY["420"][:-300],
    "adobe_marker": among(segment(0xEE, b"Adobe\0\x64" + bytes(4) + b"\x01")),
    "profile_that_pillow_fails_on": among(segment(0xE2, b"ICC_PROFILE\0\x01")),
    "scan_of_one_component": ORDINARY["420"].replace(b"\xff\xda\x00\x0c\x03", b"\xff\xda\x00\x0c\x01", 1),
    "taller_than_libjpeg_takes": ORDINARY["420"].replace(b"\x00\x3d\x00\x53\x03", b"\xff\xdd\x00\x01\x03", 1),
    "end_marker_in_the_scan_header_alone": ORDINARY["420"][:-300].replace(b"\x11\x00\x3f\x00", b"\x11\xff\xd9\x00"),
    "not_a_jpeg": b"\xff\xd8\xff nothing",
}


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_files_have_pillows_pixels_whatever_the_crop(name: str, mode: str) -> None:
    data = ORDINARY[name]
    width, height = Image.open(io.BytesIO(data)).size
    assert np.array_equal(early(data, [], mode), by_pillow(data, [], mode))
    for bottom in range(1, height + 1):
        todo = crop((bottom % width, (bottom - 1) // 2, width, bottom))
        assert np.array_equal(early(data, todo, mode), by_pillow(data, todo, mode))


def test_the_rows_below_the_crop_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    made, new = [], Image.new
    monkeypatch.setattr(Image, "new", lambda mode, size, *rest: made.append(size) or new(mode, size, *rest))
    early(ORDINARY["420"], crop((5, 0, 30, 20)))
    assert made == [(83, 24)]


@pytest.mark.parametrize("box", [None, (5, 7, 40, 60), (0, 0, 83, 61), (82, 60, 83, 61), (-3, 0, 20, 20), (60, 50, 90, 70)])
def test_what_follows_the_crop_is_left_to_do(box: tuple[int, int, int, int] | None) -> None:
    data = ORDINARY["422"]
    for pad in (None, (1, 2, 3, 4)):
        todo: list[pixels.Step] = [pixels.Window(box, pad, "zeros", (16, 12)), pixels.Turn(0)]
        assert np.array_equal(early(data, todo), by_pillow(data, todo))
        assert np.array_equal(early(data, todo[::-1]), by_pillow(data, todo[::-1]))


@pytest.mark.parametrize("name", PILLOWS)
def test_other_files_are_left_to_the_usual_way(name: str) -> None:
    for todo in ([], crop((0, 0, 9, 9))):
        assert _early.decode(record(PILLOWS[name]), "RGB", (83, 61), todo) is None


def test_steps_meant_for_another_size_are_left_to_the_usual_way() -> None:
    assert _early.decode(record(ORDINARY["420"]), "RGB", (83, 60), []) is None


def test_a_header_that_only_pillow_understands_is_read_by_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(_early, "open_lazily", lambda of: asked.append(of) or Image.open(io.BytesIO(of.data)))
    for name in ("exif", "photoshop"):
        assert _early.measure(record(ORDINARY[name])) is None
        assert early(ORDINARY[name], []) is not None
    assert len(asked) == 2
    assert early(ORDINARY["colour_profile"], []) is not None
    assert len(asked) == 2


def test_several_pictures_in_one_file_are_left_to_pillow() -> None:
    file = io.BytesIO()
    first, second = (Image.open(io.BytesIO(ORDINARY[name])).convert("RGB") for name in ("420", "444"))
    first.save(file, "MPO", save_all=True, append_images=[second])
    assert early(file.getvalue(), []) is None


def test_more_pixels_than_pillow_allows_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 83 * 61 - 1)
    assert _early.measure(record(ORDINARY["420"])) is None


def test_damaged_files_never_have_other_pixels_than_pillows_and_raise_where_pillow_does() -> None:
    rng, taken = random.Random(5), 0
    for _ in range(3000):
        data = damaged(ORDINARY[rng.choice(list(ORDINARY))], rng)
        one = record(bytes(data))
        size = _early.measure(one)
        if size is None or size[0] * size[1] > 1 << 20:
            continue
        todo = crop(sorted_box(rng, *size))
        found = _early.decode(one, "RGB", size, todo)
        if found is not None:
            taken += 1
            assert np.array_equal(np.asarray(pixels.apply(*found)), by_pillow(bytes(data), todo))
    assert taken > 300


def damaged(data: bytes, rng: random.Random) -> bytearray:
    """Bytes changed, taken out, put in, and markers among them, more often in the scan; perhaps cut short."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 6))):
        at = rng.randrange(0 if rng.random() < 0.4 else data.index(b"\xff\xda"), len(found))
        kind = rng.randrange(4)
        if kind == 0:
            found[at] = rng.choice((0, 255, rng.randrange(256)))
        elif kind == 1:
            found[at : at + 2] = bytes((255, rng.choice((0xD9, 0xD0, 0xD3, 0xDA, 0xC0, 0xC4, 0xDB, 0xDD, 0xE1, 1, 5, 255))))
        elif kind == 2:
            del found[at : at + rng.randrange(1, 9)]
        else:
            found[at:at] = bytes((255, rng.randrange(192, 255), 0, rng.randrange(12))) + rng.randbytes(rng.randrange(12))
    return found[: rng.randrange(2, len(found))] if rng.random() < 0.1 else found


def sorted_box(rng: random.Random, width: int, height: int) -> tuple[int, int, int, int]:
    """A random box inside a picture."""
    left, top = rng.randrange(width), rng.randrange(height)
    return left, top, rng.randint(left + 1, width), rng.randint(top + 1, height)
