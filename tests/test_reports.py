"""Public fault reports as scenarios, row by row: counts and order, ranks, randomness.

Errors, parity and inputs are in test_reports_errors.py, processes and memory in test_reports_processes.py. Where stock fastai
gives an answer, it is asked side by side.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastai.vision.all as stock
import numpy as np
import pytest
import torch
from cases import (
    CASES,
    EXECUTORS,
    folder_loaders,
    labels,
    learner,
    needs_shared,
    number_of,
    numbered,
    ran_by_fastload,
    seeded,
)
from fastai.data.load import SkipItemException
from fastai.vision.all import ItemTransform, Resize
from PIL import Image
from sidebyside import seed_all

import fastload.vision as fast
from fastload.source import Files, Ref
from fastload.testing import assert_same_batches

# Counts and order.


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("bs", "train", "valid"), [
    (4, 6, [4, 4, 2]), (8, 3, [8, 2]), (26, 1, [10]), (27, 0, [10]), (64, 0, [10]),
])  # fmt: skip
def test_r01_every_batch_size_gives_stocks_number_of_batches(
    bs: int, train: int, valid: list[int], executor: str, small: Path
) -> None:
    expected, actual = folder_loaders(stock, small, bs=bs), folder_loaders(fast, small, bs=bs, executor=executor)
    for dls in (expected, actual):
        assert [bs] * train == [len(y) for _, y in dls.train]
        assert valid == [len(y) for _, y in dls.valid]
        assert (train, len(valid)) == (len(dls.train), len(dls.valid))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_r01_one_batch_of_a_set_smaller_than_a_batch_raises_stocks_error(executor: str, small: Path) -> None:
    with pytest.raises(ValueError, match="does not contain any batches") as expected:
        folder_loaders(stock, small, bs=64).one_batch()
    with pytest.raises(ValueError, match="does not contain any batches") as actual:
        folder_loaders(fast, small, bs=64, executor=executor).one_batch()
    assert str(expected.value) == str(actual.value)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_r03_an_epoch_left_early_never_goes_on_later(executor: str, small: Path) -> None:
    expected = list(folder_loaders(stock, small).valid)
    valid = folder_loaders(fast, small, executor=executor).valid
    begun = iter(valid)
    next(begun)
    del begun
    assert 3 == assert_same_batches(expected, valid)
    for _ in valid:
        break
    assert 3 == assert_same_batches(expected, valid)
    assert 3 == assert_same_batches(expected, valid)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_r03_two_live_iterators_share_no_position(executor: str, small: Path) -> None:
    expected = list(folder_loaders(stock, small).valid)
    valid = folder_loaders(fast, small, executor=executor).valid
    first, second = iter(valid), iter(valid)
    taken = [(next(first), next(second)) for _ in range(3)]
    assert 3 == assert_same_batches(expected, [a for a, _ in taken])
    assert 3 == assert_same_batches(expected, [b for _, b in taken])
    assert [] == [*first, *second]


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("workers", [0, 1, 2, 3, 4])
def test_r04_a_slow_first_picture_keeps_its_place(
    workers: int, threads: int, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = list(folder_loaders(stock, small).valid)
    if workers == threads:  # the others are as slow, and show no more
        monkeypatch.setattr(Files, "read", _slow_at_zero(Files.read))
    valid = folder_loaders(fast, small, executor="threads", threads=threads, num_workers=workers).valid
    assert 3 == assert_same_batches(expected, valid)


def _slow_at_zero(read: Callable[..., Any]) -> Callable[..., Any]:
    def slow(self: Files, ref: Ref, window: Any = None) -> Any:
        if ref.index == 0:
            time.sleep(0.3)
        return read(self, ref, window)

    return slow


@pytest.mark.parametrize("executor", EXECUTORS)
def test_r06_predictions_on_a_shuffled_loader_belong_to_its_items(executor: str, small: Path) -> None:
    dls = folder_loaders(stock, small), folder_loaders(fast, small, executor=executor)
    (wanted, _), (found, targets) = (_predictions(loaders) for loaders in dls)
    items = list(dls[1].train.items)
    colours = torch.tensor([Image.open(item).getpixel((0, 0)) for item in items]) / 255
    assert torch.equal(wanted, found)
    assert torch.allclose(colours, found, atol=1e-6)
    assert [dls[1].vocab.o2i[item.parent.name] for item in items] == targets.tolist()


def _predictions(dls: Any) -> tuple[torch.Tensor, torch.Tensor]:
    learn = learner(dls)
    with learn.no_bar():
        return learn.get_preds(dl=dls.train.new(shuffle=True, drop_last=False))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_r06_get_idxs_of_a_user_are_honoured(executor: str, noise: list[Path]) -> None:
    for kw in ({"get_idxs": lambda: [7, 3, 3, 9, 0]}, {"n": 6}, {"n": 6, "shuffle": True}):
        expected, actual = numbered(noise).new(**kw), numbered(noise, executor).new(**kw)
        assert labels(seeded(expected)) == labels(seeded(actual))
        assert ran_by_fastload(actual)


# Ranks.


@pytest.fixture
def distributed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Makes one DistributedDL per rank over loaders made alike, as that many processes would; nothing is broadcast."""
    pytest.importorskip("accelerate", reason="fastai.distributed needs accelerate")
    from fastai.distributed import DistributedDL

    monkeypatch.setattr(DistributedDL, "_broadcast", lambda self, t, rank: t)
    return lambda make, world: [DistributedDL(make(), rank=r, world_size=world, device="cpu") for r in range(world)]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(("n", "bs", "world", "drop_last", "workers"), [(50, 12, 4, True, 0), (26, 4, 3, False, 2)])
def test_r08_every_rank_has_stocks_indices(
    n: int, bs: int, world: int, drop_last: bool, workers: int, executor: str, noise: list[Path], distributed: Any
) -> None:
    how = {"bs": bs, "drop_last": drop_last, "num_workers": workers}
    expected = [list(seeded_rank(dl)) for dl in distributed(lambda: numbered(noise[:n], **how), world)]
    actual = [list(seeded_rank(dl)) for dl in distributed(lambda: numbered(noise[:n], executor, **how), world)]
    for a, b in zip(expected, actual, strict=True):
        assert_same_batches(a, b)
    ranks = [sum(labels(batches), []) for batches in actual]
    if n == 50:
        assert ([0, 13, 26, 39], {12, 25, 38}) == ([r[0] for r in ranks], set(range(50)) - set().union(*ranks))
    else:
        assert [[18, 19, 20, 21], [22, 23, 24, 25], [0]] == labels(actual[2])


def seeded_rank(dl: Any) -> Iterator[Any]:
    """One epoch of a rank, from the seed that all ranks share."""
    dl.dl.rng.seed(3)
    seed_all(3)
    yield from dl


def skipping(items: tuple[int, ...]) -> Callable[[Path], int]:
    """A label function that asks to leave out some items."""

    def label(path: Path) -> int:
        if number_of(path) in items:
            raise SkipItemException
        return number_of(path)

    return label


R10 = {0: [[0, 1, 4, 5], [6, 7, 8, 9]], 2: [[0, 1, 8, 9], [4, 5, 6, 7]], 3: [[0, 1], [4, 5, 6, 7], [8, 9]]}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("workers", R10)
def test_r10_items_that_a_getter_skips_leave_stocks_batches(workers: int, executor: str, noise: list[Path]) -> None:
    how = {"y": skipping((2, 3)), "num_workers": workers}
    actual = numbered(noise[:10], executor, **how)
    assert_same_batches(seeded(numbered(noise[:10], **how)), seeded(actual))
    assert (R10[workers], 3) == (labels(seeded(actual)), len(actual))
    assert ran_by_fastload(actual)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("workers", [0, 2])
def test_r10_items_that_a_getter_skips_leave_stocks_batches_on_each_rank(
    workers: int, executor: str, noise: list[Path], distributed: Any
) -> None:
    how = {"y": skipping((2, 3)), "num_workers": workers}
    expected = distributed(lambda: numbered(noise[:10], **how), 2)
    actual = distributed(lambda: numbered(noise[:10], executor, **how), 2)
    for a, b in zip(expected, actual, strict=True):
        assert_same_batches(seeded_rank(a), seeded_rank(b))


@pytest.fixture
def two_damaged(tmp_path: Path, noise: list[Path]) -> list[Path]:
    """Ten numbered pictures, the third and fourth of them no pictures."""
    items = [tmp_path / item.name for item in noise[:10]]
    for item, original in zip(items, noise, strict=False):
        item.write_bytes(b"<html>" if number_of(item) in (2, 3) else original.read_bytes())
    return items


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("workers", [0, 2, 3])
def test_r10_damaged_files_leave_their_batch_alone_with_any_number_of_workers(
    workers: int, executor: str, two_damaged: list[Path]
) -> None:
    dl = numbered(two_damaged, executor, bad_images="skip", num_workers=workers)
    assert ([[0, 1], [4, 5, 6, 7], [8, 9]], 3) == (labels(seeded(dl)), len(dl))
    assert {str(two_damaged[2]), str(two_damaged[3])} == set(dl._fl.skipped)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("workers", [0, 2, 3])
def test_r10_damaged_files_leave_every_rank_its_number_of_batches(
    workers: int, executor: str, two_damaged: list[Path], distributed: Any
) -> None:
    how = {"bad_images": "skip", "num_workers": workers, "bs": 3}
    ranks = distributed(lambda: numbered(two_damaged, executor, **how), 2)
    assert [[[0, 1], [4]], [[5, 6, 7], [8, 9]]] == [labels(seeded_rank(dl)) for dl in ranks]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_r12_ranks_share_stocks_draws_unless_asked(executor: str, noise: list[Path], distributed: Any) -> None:
    how = {"bs": 3, "num_workers": 1}
    expected = [list(seeded_rank(dl)) for dl in distributed(lambda: numbered(noise[:10], **how), 4)]
    actual = [list(seeded_rank(dl)) for dl in distributed(lambda: numbered(noise[:10], executor, **how), 4)]
    for a, b in zip(expected, actual, strict=True):
        assert_same_batches(a, b)
    assert 1 == len({pixels(batches) for batches in actual})


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("workers", [0, 2])
def test_r12_rank_seeds_give_each_rank_its_own_crops_and_repeat(
    workers: int, executor: str, noise: list[Path], distributed: Any
) -> None:
    runs = []
    for _ in range(2):
        how = {"bs": 3, "num_workers": workers, "rank_seeds": True}
        ranks = distributed(lambda: numbered(noise[:10], executor, **how), 4)  # noqa: B023  # called at once
        runs.append([[list(seeded_rank(dl)), list(dl), list(dl)] for dl in ranks])
    crops = [[pixels(epoch) for epoch in rank] for rank in runs[0]]
    assert crops == [[pixels(epoch) for epoch in rank] for rank in runs[1]]
    assert 12 == len({crop for rank in crops for crop in rank})
    for epoch in range(3):
        found = [labels(rank[epoch]) for rank in runs[0]]
        assert set(range(10)) == {n for rank in found for batch in rank for n in batch}
        assert all(batch for rank in found for batch in rank)


def pixels(batches: list[Any]) -> str:
    """A digest of the images of an epoch."""
    return hashlib.sha256(b"".join(np.ascontiguousarray(x).tobytes() for x, _ in batches)).hexdigest()


# Randomness.


def three(path: Path) -> torch.Tensor:
    """One number from each generator, as a label."""
    return torch.tensor([random.random(), np.random.rand(), float(torch.rand(1))])


class Three(ItemTransform):
    """One number from each generator in the label's place."""

    def encodes(self, item: Any) -> Any:
        return item[0], three(Path())


@pytest.mark.parametrize("workers", [0, 2, 4])
@pytest.mark.parametrize("where", ["label", "transform"])
def test_r13_user_code_draws_other_numbers_for_every_item_and_epoch(where: str, workers: int, noise: list[Path]) -> None:
    how: dict[str, Any] = {"num_workers": workers, "bs": 2}
    how |= {"y": three} if where == "label" else {"item_tfms": (Resize(16), Three())}
    expected, actual = numbered(noise[:8], **how), numbered(noise[:8], "threads", **how)
    for dl in (expected, actual):
        seed_all(3)
        dl.rng.seed(3)
        dl.epochs = [list(dl), list(dl)]
    for a, b in zip(expected.epochs, actual.epochs, strict=True):
        assert 4 == assert_same_batches(a, b)
    drawn = torch.cat([y for epoch in actual.epochs for _, y in epoch])
    assert [16, 16, 16] == [len(set(column.tolist())) for column in drawn.T]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("workers", [0, 2])
def test_r15_every_epoch_has_other_crops_and_a_seed_repeats_them(workers: int, executor: str, noise: list[Path]) -> None:
    def ten(dl: Any) -> list[str]:
        seed_all(5)
        return [pixels(list(dl)) for _ in range(10)]

    first, again = (numbered(noise[:4], executor, num_workers=workers) for _ in range(2))
    crops = ten(first)
    assert 10 == len(set(crops))
    assert crops == ten(again) == ten(first.new())
    if workers == 0:
        assert crops == ten(numbered(noise[:4]))


# All of them.

FILES = ("test_reports.py", "test_reports_errors.py", "test_reports_processes.py")


@needs_shared
def test_every_row_on_loading_has_a_test() -> None:
    kinds = ("count/order", "ddp", "randomness", "errors", "process", "parity", "api")
    rows = {row["id"].lower() for row in json.loads((CASES / "reports.json").read_text()) if row["kind"] in kinds}
    text = "".join((Path(__file__).parent / name).read_text() for name in FILES)
    assert set() == {row for row in rows if f"def test_{row}_" not in text}
