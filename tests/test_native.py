"""The native path equals the Pillow that is installed, with every set of kernels this processor has, and refuses the rest."""

from __future__ import annotations

import io
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from fastload import native, pixels
from fastload.executors._one_pass import one_pass

SHARED = Path(__file__).resolve().parents[2] / "shared"
if native.extension() is None:
    pytest.skip("the native extension was not built", allow_module_level=True)
N = native.extension()
STATUS = native.status()


@pytest.fixture(params=N.usable_kernels())
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each set of kernels in turn."""
    before = N.kernels_in_use()
    N.use_kernels(request.param)
    yield request.param
    N.use_kernels(before)


def picture(size: tuple[int, int], seed: int, mode: str = "RGB") -> Image.Image:
    rng = np.random.default_rng(seed)
    smooth = np.cumsum(rng.integers(-9, 10, (size[1], size[0], 3)), axis=1) % 256
    edges = np.where(rng.random((size[1], size[0], 1)) < 0.05, rng.integers(0, 256, (size[1], size[0], 3)), smooth)
    return Image.fromarray(edges.astype(np.uint8)).convert(mode)


def jpeg(size: tuple[int, int], seed: int, mode: str = "RGB", **how: Any) -> bytes:
    file = io.BytesIO()
    picture(size, seed, mode).save(file, "JPEG", **{"quality": 87, **how})
    return file.getvalue()


def opened(data: bytes, mode: str = "RGB") -> Image.Image:
    return Image.open(io.BytesIO(data)).convert(mode)


def native_pixels(data: bytes, todo: list[pixels.Step], mode: str = "RGB") -> np.ndarray | str:
    """What the extension makes of the steps, or why it refuses."""
    image = opened(data)
    one = one_pass(todo, image.size)
    assert one is not None, todo
    box, size, window, mirrored = one.arguments()
    out = np.full((len(mode), window[3] - window[1], window[2] - window[0]), 99, np.uint8)
    refused = N.render(data, box, size, window, mirrored, native.pillow13(), out, *one.rest())
    return out if refused is None else refused


def pillow_pixels(data: bytes, todo: list[pixels.Step], mode: str = "RGB") -> np.ndarray:
    array = np.asarray(pixels.apply(opened(data, mode), todo))
    return array.transpose(2, 0, 1) if array.ndim == 3 else array[None]


def assert_same(data: bytes, todo: list[pixels.Step], mode: str = "RGB") -> None:
    found = native_pixels(data, todo, mode)
    assert not isinstance(found, str), found
    assert np.array_equal(pillow_pixels(data, todo, mode), found)


def test_the_self_test_holds_here() -> None:
    assert (True, True, "") == (STATUS.decodes, STATUS.resizes, STATUS.reason)


LAYOUTS = [("RGB", 0), ("RGB", 1), ("RGB", 2), ("L", 0)]


@pytest.mark.parametrize("restart", [0, 2])
@pytest.mark.parametrize(("mode", "subsampling"), LAYOUTS)
def test_every_window_of_a_small_picture_is_decoded_exactly(mode: str, subsampling: int, restart: int) -> None:
    how = {"restart_marker_blocks": restart} if restart else {}
    data = jpeg((45, 37), 3, mode, **({"subsampling": subsampling} if mode == "RGB" else {}), **how)
    whole = np.asarray(opened(data)).transpose(2, 0, 1)
    for left, right in itertools.combinations(range(0, 46, 5), 2):
        for top, bottom in itertools.combinations(range(0, 38, 6), 2):
            out = np.zeros((3, bottom - top, right - left), np.uint8)
            size = (right - left, bottom - top)
            assert N.render(data, (left, top, right, bottom), size, (0, 0, *size), False, native.pillow13(), out) is None
            assert np.array_equal(whole[:, top:bottom, left:right], out)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_random_crops_and_sizes_equal_pillow(kernels: str, mode: str) -> None:
    rng = random.Random(7)
    for k in range(120):
        w, h = rng.randint(1, 150), rng.randint(1, 150)
        data = jpeg((w, h), k, rng.choice(["RGB", "RGB", "L"]), quality=rng.choice([30, 87, 98]))
        left, top = rng.randrange(w), rng.randrange(h)
        box = (left, top, rng.randint(left + 1, w), rng.randint(top + 1, h))
        out = (rng.choice([1, 8, 33, 64, box[2] - box[0]]), rng.choice([1, 7, 40, 97, box[3] - box[1]]))
        todo: list[pixels.Step] = [pixels.Turn(0)] if rng.random() < 0.5 else []
        todo.append(pixels.Window(box if not todo else (w - box[2], box[1], w - box[0], box[3]), None, "zeros", out))
        if rng.random() < 0.4:
            todo.append(pixels.Window((out[0] // 3, out[1] // 4, out[0], out[1])))
        assert_same(data, todo, mode)


@pytest.mark.parametrize("wide", [(700, 20), (20, 700), (300, 299), (301, 150), (64, 500)])
def test_either_order_of_the_passes_equals_pillow(kernels: str, wide: tuple[int, int]) -> None:
    data = jpeg(wide, 11)
    for out in ((10, 10), (64, 9), (9, 64), (wide[0], 10), (10, wide[1]), (200, 200)):
        assert_same(data, [pixels.Window((0, 0, *wide), None, "zeros", out)])


@pytest.mark.parametrize("methods", [(), *((m,) for m in range(7)), *itertools.product(range(7), repeat=2)])
def test_every_turn_and_pair_of_turns_equals_pillow(methods: tuple[int, ...]) -> None:
    data = jpeg((39, 26), 5, subsampling=2)
    turned = pixels.apply(opened(data), [pixels.Turn(m) for m in methods])
    w, h = turned.size
    turns: list[pixels.Step] = [pixels.Turn(m) for m in methods]
    assert_same(data, [*turns, pixels.Window((3, 2, w - 1, h - 4), None, "zeros", (17, 12))])
    assert_same(data, [*turns, pixels.Window((0, 0, w, h), (2, 9, 30, 1), "reflection", (23, 21))])


@pytest.mark.parametrize("mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("pad", [(0, 0, 3, 0), (5, 1, 0, 2), (40, 0, 41, 70), (1, 200, 1, 3)])
@pytest.mark.parametrize("mirrored", [False, True])
def test_every_pad_mode_equals_pillow(mode: str, pad: tuple[int, int, int, int], mirrored: bool) -> None:
    for size in ((31, 22), (1, 9), (9, 1)):
        data = jpeg(size, 8)
        turns: list[pixels.Step] = [pixels.Turn(0)] if mirrored else []
        assert_same(data, [*turns, pixels.Window(None, pad, mode, (20, 19))])
        assert_same(data, [*turns, pixels.Window((0, 0, *size), pad, mode)])


def test_decoded_pixels_are_resized_as_pillow_does(kernels: str) -> None:
    rng = random.Random(5)
    for k in range(60):
        mode = rng.choice(["RGB", "L"])
        image = picture((rng.randint(2, 90), rng.randint(2, 90)), k, mode)
        out = (rng.randint(1, 60), rng.randint(1, 60))
        truth = np.asarray(ImageOps.mirror(image).resize(out, 2))
        array = np.asarray(image)
        found = np.zeros((len(mode), out[1], out[0]), np.uint8)
        array = array if array.ndim == 3 else array[..., None]
        assert N.resize(array, (0, 0, *image.size), out, (0, 0, *out), True, native.pillow13(), found) is None
        assert np.array_equal(truth.transpose(2, 0, 1) if truth.ndim == 3 else truth[None], found)


def test_channels_last_holds_the_same_pixels() -> None:
    data, size = jpeg((60, 50), 2), (31, 24)
    first, last = np.zeros((3, 24, 31), np.uint8), np.zeros((24, 31, 3), np.uint8)
    for out, flag in ((first, False), (last, True)):
        N.render(data, (1, 2, 55, 49), size, (0, 0, *size), False, native.pillow13(), out, channels_last=flag)
    assert np.array_equal(first, last.transpose(2, 0, 1))


def test_all_kernels_agree_on_the_widest_taps(kernels: str) -> None:
    data = jpeg((2000, 1500), 4)
    assert_same(data, [pixels.Window((0, 0, 2000, 1500), None, "zeros", (5, 3))])


@pytest.mark.parametrize(
    "why",
    ["progressive", "cmyk", "truncated", "no end", "marker in the scan", "two scans", "empty", "not a jpeg", "twelve bits"],
)
def test_what_is_not_ordinary_is_refused(why: str) -> None:
    good = jpeg((40, 30), 1)
    scan = good.index(b"\xff\xda")
    data = {
        "progressive": lambda: jpeg((40, 30), 1, progressive=True),
        "cmyk": lambda: jpeg((40, 30), 1, "CMYK"),
        "truncated": lambda: good[:-40],
        "no end": lambda: good[:-2],
        "marker in the scan": lambda: good[: scan + 40] + b"\xff\xc4" + good[scan + 40 :],
        "two scans": lambda: good[:-2] + good[scan:],
        "empty": lambda: b"",
        "not a jpeg": lambda: b"\x89PNG" + good,
        "twelve bits": lambda: good.replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc0\x00\x11\x0c"),
    }[why]()
    if why not in ("truncated", "no end", "marker in the scan", "two scans"):  # the header alone does not show these
        assert isinstance(N.probe(data), str)
    assert isinstance(N.render(data, (0, 0, 8, 8), (8, 8), (0, 0, 8, 8), False, True, np.zeros((3, 8, 8), np.uint8)), str)


@pytest.mark.parametrize(
    ("box", "size", "window", "shape"),
    [
        ((0, 0, 41, 30), (8, 8), (0, 0, 8, 8), (3, 8, 8)),
        ((5, 5, 5, 9), (8, 8), (0, 0, 8, 8), (3, 8, 8)),
        ((-1, 0, 8, 8), (8, 8), (0, 0, 8, 8), (3, 8, 8)),
        ((0, 0, 8, 8), (8, 8), (0, 0, 9, 8), (3, 8, 9)),
        ((0, 0, 8, 8), (8, 8), (0, 0, 8, 8), (3, 8, 9)),
        ((0, 0, 8, 8), (8, 8), (0, 0, 8, 8), (2, 8, 8)),
        ((0, 0, 8, 8), (0, 8), (0, 0, 0, 8), (3, 8, 1)),
    ],
)
def test_numbers_that_would_reach_outside_are_refused(box: Any, size: Any, window: Any, shape: Any) -> None:
    with pytest.raises(ValueError, match="crop|output"):
        N.render(jpeg((40, 30), 1), box, size, window, False, True, np.zeros(shape, np.uint8))


def test_mutated_files_never_give_pixels_where_pillow_raises() -> None:
    """Bit flips, cuts, swaps and insertions in headers and scans: whatever is accepted has Pillow's own pixels."""
    rng, accepted = random.Random(3), 0
    for k in range(1500):
        data = bytearray(jpeg((rng.randint(8, 70), rng.randint(8, 70)), k % 12, subsampling=k % 3))
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data) if rng.random() < 0.5 else min(len(data), 700))
            kind = rng.randrange(4)
            if kind == 0:
                data[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                del data[at : at + rng.randint(1, 30)]
            elif kind == 2:
                data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 5)))
            else:
                data[at : at + 2] = data[at + 1 : at + 3][::-1]
        accepted += _accepted_as_pillow(bytes(data))
    assert accepted > 100


def _accepted_as_pillow(data: bytes) -> bool:
    head = N.probe(data)
    if isinstance(head, str):
        return False
    width, height, _, ask_pillow = head
    if width * height > 1 << 22:
        return False
    out = np.zeros((3, height, width), np.uint8)
    refused = N.render(data, (0, 0, width, height), (width, height), (0, 0, width, height), False, native.pillow13(), out)
    if refused is not None:
        return False
    try:
        image = Image.open(io.BytesIO(data))
        assert (width, height) == image.size
    except Exception:  # noqa: BLE001  Pillow raises anything
        assert ask_pillow, "Pillow does not open a file that the native path would open without asking it"
        return False
    assert np.array_equal(np.asarray(image.convert("RGB")).transpose(2, 0, 1), out)
    return True


def _resource(code: int, name: bytes, data: bytes) -> bytes:
    named = bytes([len(name)]) + name + (b"" if len(name) % 2 else b"\0")
    return b"8BIM" + code.to_bytes(2, "big") + named + len(data).to_bytes(4, "big") + data + b"\0" * (len(data) % 2)


def test_photoshops_blocks_are_walked_as_pillow_walks_them() -> None:
    rng, file = random.Random(4), io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, "JPEG")
    photo, asked = file.getvalue(), []
    whole = (
        b"Photoshop 3.0\0" + _resource(0x0404, b"", b"caption") + _resource(0x03ED, b"", bytes(16)) + _resource(1, b"ab", b"")
    )
    for k in range(3000):
        body = bytearray(whole)
        for _ in range(0 if k == 0 else rng.randint(1, 3)):
            body[rng.randrange(len(body))] = rng.choice((0, 1, 0x38, 0x7F, 0xFF, rng.randrange(256)))
        if k > 0 and rng.random() < 0.5:
            del body[rng.randrange(len(body)) :]
        data = photo[:20] + b"\xff\xed" + (len(body) + 2).to_bytes(2, "big") + bytes(body) + photo[20:]
        head = N.probe(data)
        assert not isinstance(head, str)
        asked.append(head[3])
        if not head[3]:
            assert Image.open(io.BytesIO(data)).size == head[:2]
    assert not asked[0]
    assert 100 < sum(asked) < 2900


@pytest.mark.skipif(not (SHARED / "photos").is_dir(), reason=f"the shared photos are not at {SHARED}")
def test_every_photo_is_taken_and_equals_pillow(kernels: str) -> None:
    rng = random.Random(2)
    for path in sorted((SHARED / "photos").glob("*.JPEG"))[:: 1 if kernels == N.usable_kernels()[0] else 5]:
        data = path.read_bytes()
        w, h = Image.open(io.BytesIO(data)).size
        x, y = rng.randrange(w // 2), rng.randrange(h // 2)
        box = (x, y, rng.randint(x + w // 4, w), rng.randint(y + h // 4, h))
        assert_same(data, [*([pixels.Turn(0)] if rng.random() < 0.5 else []), pixels.Window(box, None, "zeros", (224, 224))])


@pytest.mark.skipif(not (SHARED / "cases" / "files").is_dir(), reason=f"the shared cases are not at {SHARED}")
def test_awkward_files_are_refused_or_equal_to_pillow() -> None:
    for path in sorted((SHARED / "cases" / "files").iterdir()):
        if path.suffix in (".jpg", ".jpeg", ".png") and path.stat().st_size < 1 << 22:
            _accepted_as_pillow(path.read_bytes())
