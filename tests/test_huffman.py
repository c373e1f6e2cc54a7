"""Huffman tables of every shape, with scans written for them by hand: the native decoder's pixels are Pillow's."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
from PIL import Image

from fastload import native

pytestmark = pytest.mark.skipif(not native.status().decodes, reason=f"no native path: {native.status().reason}")

Codes = dict[int, tuple[int, int]]  # symbol -> length, code


def table(symbols: list[int], lengths: list[int]) -> tuple[bytes, Codes]:
    """The body of a DHT segment after its class and number, and the canonical codes (ITU-T T.81, annex C)."""
    counts, codes, code, last = [0] * 17, {}, 0, 0
    for symbol, length in zip(symbols, sorted(lengths), strict=True):
        code <<= length - last
        codes[symbol] = (length, code)
        counts[length] += 1
        code, last = code + 1, length
    assert code < 1 << last, "the code of all ones is not used"
    return bytes(counts[1:]) + bytes(symbols), codes


def lengths(count: int, shortest: int, rng: random.Random) -> list[int]:
    """So many code lengths that fit together, from `shortest` to 16."""
    while True:
        found = [min(16, shortest + int(rng.expovariate(0.4))) for _ in range(count)]
        if sum(2.0**-n for n in found) < 0.999:
            return found
        shortest = min(16, shortest + 1)


def signed(value: int) -> tuple[int, int]:
    """Size and bits of a value (T.81, F.1.2.1)."""
    size = abs(value).bit_length()
    return size, value if value >= 0 else value + (1 << size) - 1


def block(previous: int, dc: Codes, ac: Codes, rng: random.Random) -> tuple[list[tuple[int, int]], int]:
    """Codes of a block and its DC value."""
    value = max(-200, min(200, previous + rng.choice((0, 0, rng.randint(-90, 90)))))
    size, bits = signed(value - previous)
    out, k = [(dc[size][0], dc[size][1]), (size, bits)], 1
    symbols = [s for s in ac if s & 15]
    while k < 64 and rng.random() < 0.9:
        symbol = rng.choice(symbols)
        run, size = symbol >> 4, symbol & 15
        if k + run > 63:
            break
        out += [ac[symbol], (size, rng.randrange(1 << size))]
        k += run + 1
        if k < 40 and rng.random() < 0.05:
            out.append(ac[0xF0])
            k += 16
    if k < 64:
        out.append(ac[0])
    return out, value


def scan(blocks: int, dc: Codes, ac: Codes, rng: random.Random) -> bytes:
    """The entropy-coded bytes, stuffed and padded with ones."""
    text, previous = [], 0
    for _ in range(blocks):
        codes, previous = block(previous, dc, ac, rng)
        text += [f"{code:0{length}b}" for length, code in codes if length]
    bits = "".join(text)
    bits += "1" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\x00")


def picture(shortest: int, rng: random.Random) -> bytes:
    """A gray picture of 64 x 48 pixels whose codes are at least about `shortest` bits long."""
    sizes = list(range(10))
    values = rng.sample([run << 4 | size for run in range(16) for size in range(1, 6)], rng.randint(3, 78))
    rng.shuffle(sizes)
    symbols = [*values, 0, 0xF0]
    rng.shuffle(symbols)
    dc_body, dc = table(sizes, lengths(len(sizes), shortest, rng))
    ac_body, ac = table(symbols, lengths(len(symbols), shortest, rng))
    file = io.BytesIO()
    Image.new("L", (64, 48)).save(file, "JPEG", quality=95)
    data = file.getvalue()
    head = data[: data.index(b"\xff\xc4")]
    for number, body in ((0x00, dc_body), (0x10, ac_body)):
        head += b"\xff\xc4" + (len(body) + 3).to_bytes(2, "big") + bytes([number]) + body
    sos = data.index(b"\xff\xda")
    return head + data[sos : sos + 10] + scan(48, dc, ac, rng) + b"\xff\xd9"


@pytest.mark.parametrize("shortest", [1, 4, 8, 10, 11, 12, 15])
def test_scans_of_random_tables_equal_pillow(shortest: int) -> None:
    rng, extension, ours = random.Random(shortest), native.extension(), 0
    for _ in range(40):
        data = picture(shortest, rng)
        truth = np.asarray(Image.open(io.BytesIO(data)))
        left, top = rng.choice((0, 17, 40)), rng.choice((0, 9, 30))
        box = (left, top, min(64, left + rng.choice((5, 24, 64))), min(48, top + rng.choice((5, 18, 48))))
        size = (box[2] - box[0], box[3] - box[1])
        out = np.empty((1, size[1], size[0]), np.uint8)
        assert extension.render(data, box, size, (0, 0, *size), False, native.pillow13(), out) is None
        assert np.array_equal(out[0], truth[box[1] : box[3], box[0] : box[2]])
        ours += extension.entropy_only(data, 48, ours=True) is None
    assert ours == 40
