"""The extension's own entropy decoder: libjpeg's coefficients for every good scan, and no pixels from a bad one."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastload import native

pytestmark = pytest.mark.skipif(native.extension() is None, reason="the native extension was not built")
STATUS = native.status()  # connects it to libjpeg
N: Any = native.extension()


def jpeg(size: tuple[int, int] = (75, 58), mode: str = "RGB", noise: bool = False, **how: Any) -> bytes:
    rng = np.random.default_rng(8)
    shape = (size[1], size[0], 3)
    values = rng.integers(0, 256, shape) if noise else np.cumsum(rng.integers(-9, 10, shape), axis=1) % 256
    file = io.BytesIO()
    Image.fromarray(values.astype(np.uint8)).convert(mode).save(file, "JPEG", **{"quality": 90, **how})
    return file.getvalue()


def by_pillow(data: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).transpose(2, 0, 1)


def by_native(data: bytes, box: tuple[int, int, int, int]) -> Any:
    """The pixels of the crop, or the reason why there are none."""
    size = (box[2] - box[0], box[3] - box[1])
    out = np.zeros((3, size[1], size[0]), np.uint8)
    return N.render(data, box, size, (0, 0, *size), False, native.pillow13(), out) or out


def assert_as_pillow(data: bytes) -> None:
    wanted = by_pillow(data)
    height, width = wanted.shape[1:]
    rng = random.Random(4)
    for k in range(6):
        x, y = (0, 0) if k == 0 else (rng.randrange(width), rng.randrange(height))
        right, bottom = (width, height) if k == 0 else (rng.randint(x + 1, width), rng.randint(y + 1, height))
        found = by_native(data, (x, y, right, bottom))
        assert not isinstance(found, str), found
        assert np.array_equal(wanted[:, y:bottom, x:right], found)


def restart_markers(data: bytes) -> list[int]:
    return [k for k in range(len(data) - 1) if data[k] == 0xFF and 0xD0 <= data[k + 1] <= 0xD7]


GOOD: dict[str, dict[str, Any]] = {
    "444": {"subsampling": 0},
    "422": {"subsampling": 1},
    "420": {"subsampling": 2},
    "gray": {"mode": "L"},
    "own tables": {"optimize": True},
    "long codes": {"quality": 100, "noise": True},
    "long codes, own tables": {"quality": 100, "noise": True, "optimize": True},
    "short blocks": {"quality": 3},
    "an interval per block": {"restart_marker_blocks": 1},
    "odd intervals": {"restart_marker_blocks": 7, "subsampling": 2},
    "an interval per row": {"restart_marker_rows": 1, "subsampling": 1},
    "one pixel": {"size": (1, 1)},
    "one column": {"size": (1, 200), "restart_marker_blocks": 2},
    "one row": {"size": (200, 1)},
}


@pytest.mark.parametrize("name", GOOD)
def test_good_scans_are_taken_and_have_pillows_pixels(name: str) -> None:
    data = jpeg(**GOOD[name])
    assert N.entropy_only(data, 1, True) is None
    assert_as_pillow(data)


def test_tables_change_from_image_to_image() -> None:
    files = [jpeg(**how) for how in GOOD.values()]
    rng = random.Random(6)
    for _ in range(40):
        data = rng.choice(files)
        found = by_native(data, (0, 0, by_pillow(data).shape[2], by_pillow(data).shape[1]))
        assert np.array_equal(by_pillow(data), found)


def test_restart_markers_out_of_order_are_left_to_libjpeg() -> None:
    data = bytearray(jpeg(restart_marker_blocks=3))
    first, second = restart_markers(bytes(data))[:2]
    data[first + 1], data[second + 1] = data[second + 1], data[first + 1]
    assert "restart" in N.entropy_only(bytes(data), 1, True)
    found = by_native(bytes(data), (0, 0, 75, 58))
    assert isinstance(found, str) or np.array_equal(by_pillow(bytes(data)), found)


def test_a_missing_interval_is_left_to_libjpeg() -> None:
    data = jpeg(restart_marker_blocks=3)
    marks = restart_markers(data)
    cut = data[: marks[3]] + data[marks[4] :]
    assert "restart" in N.entropy_only(cut, 1, True)


@pytest.mark.parametrize("where", [0.3, 0.6, 0.95])
def test_a_scan_that_ends_early_is_refused(where: float) -> None:
    data = jpeg(noise=True)
    start = data.index(b"\xff\xda") + 20
    cut = data[: start + int(where * (len(data) - start))].rstrip(b"\xff") + b"\xff\xd9"
    assert by_native(cut, (0, 0, 75, 58)) == "libjpeg gave up"


def test_a_code_that_no_table_has_is_refused() -> None:
    data = jpeg(subsampling=0, optimize=True)
    start = data.index(b"\xff\xda") + 14
    ones = data[:start] + b"\xff\x00" * (len(data) - start - 2) + b"\xff\xd9"
    assert isinstance(by_native(ones, (0, 0, 75, 58)), str)


@pytest.mark.parametrize("factors", [0x12, 0x21, 0x22, 0x41])
def test_sampling_factors_of_a_gray_file_mean_nothing(factors: int) -> None:
    data = bytearray(jpeg(mode="L"))
    frame = data.index(b"\xff\xc0")
    assert data[frame + 9] == 1
    data[frame + 11] = factors
    assert_as_pillow(bytes(data))


def test_a_negative_number_of_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        N.entropy_only(jpeg(), -1)
