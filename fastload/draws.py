"""The random numbers of a Plan, drawn in fastai's own order by virtual workers.

Stock fastai runs batch b in worker process b % num_workers (until skipped items leave one without work), whose Python
generator was seeded with base_seed + worker id, and draws inside each transform as the item passes through. `Drawer` draws
the same numbers in the same order without the processes. With num_workers=0 stock draws from the global generator between the
user's own draws; there draws run ahead on a copy, which is adopted at hand-over if nobody touched the global generator
meanwhile, else the batch is drawn again.

A sample's draws are one entry per operation: what stock's `before_call` would have stored on the transform.
Formulas: fastai 2.8 vision/augment.py, the `before_call` of each class.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from fastload.ops import CropPad, Dihedral, Flip, Op, RandomCrop, RandomResizedCrop, RatioResize, Resize, Size, Stored
from fastload.plan import Plan

__all__ = ["Drawer", "Sample", "draw_sample", "ratio_size", "rng_after_words", "turns", "words_from_state"]

Sample = tuple[Any, ...]
_BLOCK = 624  # 32-bit words in one block of the Mersenne Twister
_LEAP = 1 << 20  # words drawn at once: getrandbits takes no more than 2**31 bits


def draw_sample(plan: Plan, rng: Any, size: Size | None) -> Sample:
    """Draw one sample's parameters from `rng` (a `random.Random`, or the module itself). `size`: first image, if needed."""
    out = []
    for op in plan.ops:
        out.append(_draw(op, rng, size, len(plan.spatial)))
        if size is not None:
            size = _grow(op, out[-1], size)
    return tuple(out)


def _draw(op: Op, rng: Any, size: Size | None, spatial: int) -> Any:
    if isinstance(op, RandomResizedCrop):
        return _draw_resized_crop(op, rng, size) if op.random else None
    if isinstance(op, Resize):
        if op.method == "squish":
            return None
        return (rng.random(), rng.random()) if op.random else (0.5, 0.5)
    if isinstance(op, Flip):
        return op.p == 1.0 or rng.random() < op.p
    if isinstance(op, Dihedral):
        do = op.p == 1.0 or rng.random() < op.p
        return do, rng.randint(0, 7)
    if isinstance(op, RandomCrop):
        return _draw_crop(op, rng, size) if op.random else None
    if isinstance(op, Stored):
        return rng.randrange(op.variants) if op.variants > 1 else 0
    if isinstance(op, RatioResize):
        return tuple((rng.random(), rng.random()) for _ in range(spatial)) if op.applies else ()
    return None


def _draw_resized_crop(op: RandomResizedCrop, rng: Any, size: Size | None) -> tuple[Size, Size]:
    """Top left corner and size of the crop: at most ten tries, then the largest centre crop of a legal ratio."""
    w, h = _known(size)
    for _ in range(10):
        area = rng.uniform(op.min_scale, op.max_scale) * w * h
        ratio = math.exp(rng.uniform(math.log(op.ratio[0]), math.log(op.ratio[1])))
        cw, ch = int(round(math.sqrt(area * ratio))), int(round(math.sqrt(area / ratio)))
        if cw <= w and ch <= h:
            return (rng.randint(0, w - cw), rng.randint(0, h - ch)), (cw, ch)
    if w / h < op.ratio[0]:
        cw, ch = w, int(w / op.ratio[0])
    elif w / h > op.ratio[1]:
        cw, ch = int(h * op.ratio[1]), h
    else:
        cw, ch = w, h
    return ((w - cw) // 2, (h - ch) // 2), (cw, ch)


def _draw_crop(op: RandomCrop, rng: Any, size: Size | None) -> Size:
    w, h = _known(size)
    wd, hd = w - op.size[0], h - op.size[1]
    left = rng.randint(wd, -1) if wd < 0 else rng.randint(0, wd)
    return left, rng.randint(hd, -1) if hd < 0 else rng.randint(0, hd)


def _known(size: Size | None) -> Size:
    if size is None:
        raise ValueError("this Plan's random crops depend on the image's size: draw_sample needs `size`")
    return size


def _grow(op: Op, drawn: Any, size: Size) -> Size:
    """Size of the first image after `op`, for operations that draw by size later in the list."""
    if not op.applies or isinstance(op, Flip):
        return size
    if isinstance(op, Dihedral):
        return (size[1], size[0]) if drawn[0] and turns(drawn[1]) else size
    if isinstance(op, RatioResize):
        return ratio_size(op, size)
    if isinstance(op, CropPad | Resize | RandomCrop | RandomResizedCrop | Stored):
        return op.size
    return size


def turns(k: int) -> bool:
    """Whether dihedral case `k` swaps width and height (Pillow's transpose k - 1: rotations by 90 and 270, both transposes)."""
    return k in (3, 5, 6, 7)


def ratio_size(op: RatioResize, size: Size) -> Size:
    """Output size of RatioResize for an image of `size`, fastai's own rounding.

    >>> ratio_size(RatioResize(100), (300, 200))
    (100, 66)
    """
    w, h = size
    nw, nh = (op.max_sz, h * op.max_sz / w) if w >= h else (w * op.max_sz / h, op.max_sz)
    return int(nw), int(nh)


class Drawer:
    """Draws the batches of one iteration in order; `workers` is stock's num_workers, `base_seed` torch's base seed.

    Owned by one iterator. `draw` is called for batch 0, 1, 2 ... by whichever thread holds the executor's lock; `settle` and
    `abandon` by the consumer's thread when a batch is handed over or fails.
    """

    def __init__(self, plan: Plan, workers: int, base_seed: int, ahead: bool = True) -> None:
        self.plan, self.workers, self.base_seed = plan, workers, base_seed
        self.ahead = ahead or workers > 0
        self._rngs = [random.Random(base_seed + w) for w in range(workers)]
        self._copy = random.Random()
        if workers == 0 and plan.draws:
            self._copy.setstate(random.getstate())
        self._spans: dict[int, tuple[Any, Any]] = {}
        self._settled: dict[int, Any] = {}

    def draw(self, number: int, sizes: Sequence[Size | None], worker: int | None = None) -> list[Sample] | None:
        """Draw batch `number` ahead of time; None where its numbers can only be known at hand-over."""
        rng = self.begin(number, worker)
        if rng is None:
            return None
        drawn = self._samples(rng, sizes)
        self.end(number, rng)
        return drawn

    def begin(self, number: int, worker: int | None = None) -> Any:
        """The generator for batch `number`, to be handed to `draw_sample` for each of its samples in order; then call `end`.

        None where its numbers can only be known at hand-over.
        """
        if not self.plan.draws:
            return random  # from which nothing is drawn
        if not self.ahead:
            return None
        rng = self._rngs[self._worker(number, worker)] if self.workers else self._copy
        self._spans[number] = (None if self.workers else rng.getstate(), None)
        return rng

    def end(self, number: int, rng: Any) -> None:
        """All samples of batch `number` are drawn."""
        if self.plan.draws:
            self._spans[number] = (self._spans[number][0], rng.getstate())

    def settle(self, number: int, sizes: Sequence[Size | None], worker: int | None = None) -> list[Sample] | None:
        """Confirm batch `number` as it is handed over; a list if its draws must be replaced by this one."""
        if not self.plan.draws:
            return None
        before, after = self._spans.pop(number, (None, None))
        if self.workers:
            self._settled[self._worker(number, worker)] = after
            return None
        if before is not None and random.getstate() == before:
            random.setstate(after)
            return None
        self.ahead = False
        return self._samples(random, sizes)

    def abandon(self, sizes: Sequence[Size | None]) -> None:
        """Leave the global generator where stock would when the item after `sizes` fails (num_workers=0)."""
        if self.workers == 0:
            self._samples(random, sizes)

    def words(self) -> list[int]:
        """How many 32-bit words each virtual worker has consumed for the batches handed over so far."""
        seeds = range(self.base_seed, self.base_seed + self.workers)
        states = [self._settled.get(w) for w in range(self.workers)]
        return [0 if s is None else words_from_state(seed, s) for seed, s in zip(seeds, states, strict=True)]

    def forward(self, words: Sequence[int]) -> None:
        """Continue each virtual worker after `words` consumed words: the inverse of `words()`."""
        self._rngs = [rng_after_words(self.base_seed + w, n) for w, n in enumerate(words)]
        self._settled = {w: rng.getstate() for w, rng in enumerate(self._rngs)}

    def _worker(self, number: int, worker: int | None) -> int:
        return number % self.workers if worker is None else worker

    def _samples(self, rng: Any, sizes: Sequence[Size | None]) -> list[Sample]:
        return [draw_sample(self.plan, rng, size) for size in sizes]


def rng_after_words(seed: int, words: int) -> random.Random:
    """A generator seeded with `seed` that has given `words` 32-bit words.

    >>> rng_after_words(7, 2).random() == [random.seed(7), random.random(), random.random()][2]
    True
    """
    rng = random.Random(seed)
    for start in range(0, words, _LEAP):
        rng.getrandbits(32 * min(_LEAP, words - start))
    return rng


def words_from_state(seed: int, state: Any, limit: int = 1 << 34) -> int:
    """The number of words after which a generator seeded with `seed` is in `state` (from `Random.getstate()`).

    >>> words_from_state(5, rng_after_words(5, 1999).getstate())
    1999
    """
    rng = random.Random(seed)
    want = state[1]
    for words in range(-_BLOCK, limit, _BLOCK):  # a new generator is at the end of the block before its first word
        if rng.getstate()[1][:_BLOCK] == want[:_BLOCK]:
            return int(words + want[_BLOCK])
        rng.getrandbits(32 * _BLOCK)
    raise ValueError(f"no generator seeded with {seed} reaches this state within {limit} words")
