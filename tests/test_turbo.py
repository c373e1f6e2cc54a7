"""The packages-only decoder of the threads executor: Pillow's pixels, or nothing."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastload import pixels
from fastload.executors import _turbo
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


def by_pillow(data: bytes) -> Any:
    return np.asarray(pixels.load(record(data), "RGB"))


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
    "not_a_jpeg": b"\xff\xd8\xff nothing",
}


def test_this_torchvision_agrees_with_this_pillow() -> None:
    assert _turbo.agrees()


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_files_have_pillows_pixels(name: str) -> None:
    found = _turbo.decode(record(ORDINARY[name]), "RGB")
    assert found is not None
    assert np.array_equal(found.pixels, by_pillow(ORDINARY[name]))


@pytest.mark.parametrize("name", PILLOWS)
def test_other_files_are_left_to_pillow(name: str) -> None:
    assert _turbo.decode(record(PILLOWS[name]), "RGB") is None


def test_a_header_that_only_pillow_understands_is_read_by_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(_turbo, "open_lazily", lambda of: asked.append(of) or Image.open(io.BytesIO(of.data)))
    for name in ("exif", "photoshop"):
        assert _turbo.measure(record(ORDINARY[name])) is None
        assert _turbo.decode(record(ORDINARY[name]), "RGB") is not None
    assert len(asked) == 2
    assert _turbo.decode(record(ORDINARY["colour_profile"]), "RGB") is not None
    assert len(asked) == 2


def test_several_pictures_in_one_file_are_left_to_pillow() -> None:
    file = io.BytesIO()
    first, second = (Image.open(io.BytesIO(ORDINARY[name])).convert("RGB") for name in ("420", "444"))
    first.save(file, "MPO", save_all=True, append_images=[second])
    assert _turbo.decode(record(file.getvalue()), "RGB") is None


@pytest.mark.parametrize("mode", ["L", "P"])
def test_other_modes_are_left_to_pillow(mode: str) -> None:
    assert _turbo.decode(record(ORDINARY["420"]), mode) is None


@pytest.mark.parametrize("box", [None, (5, 7, 40, 60), (0, 0, 83, 61), (82, 60, 83, 61), (-3, 0, 20, 20), (60, 50, 90, 70)])
def test_a_first_crop_copies_what_pillow_would_crop(box: tuple[int, int, int, int] | None) -> None:
    todo: list[pixels.Step] = [pixels.Window(box, None, "zeros", (16, 12)), pixels.Turn(0)]
    decoded = _turbo.decode(record(ORDINARY["422"]), "RGB")
    assert decoded is not None
    image, rest = decoded.cropped(todo)
    wanted = pixels.apply(Image.fromarray(by_pillow(ORDINARY["422"])), todo)
    assert np.array_equal(np.asarray(wanted), np.asarray(pixels.apply(image, rest)))


def test_damaged_files_never_have_other_pixels_than_pillows() -> None:
    rng, taken = random.Random(5), 0
    for _ in range(3000):
        data = bytearray(ORDINARY[rng.choice(list(ORDINARY))])
        for _ in range(rng.choice((1, 1, 2, 6))):
            data[rng.randrange(len(data))] = rng.choice((0, 255, rng.randrange(256)))
        found = _turbo.decode(record(bytes(data)), "RGB")
        if found is not None:
            taken += 1
            assert np.array_equal(found.pixels, by_pillow(bytes(data)))
    assert taken > 300
