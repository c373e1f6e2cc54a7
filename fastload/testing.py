"""Assertions for users' tests and ours: two loaders give the same batches, bit for bit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastload.errors import MismatchError

__all__ = ["assert_same_batch", "assert_same_batches"]


def assert_same_batches(expected: Iterable[Any], actual: Iterable[Any]) -> int:
    """Compare two iterables of batches (loaders, lists): count, types, dtypes, shapes, strides, values, metadata.

    Returns the number of batches. Raises MismatchError naming the batch, the part and the largest difference. Each is iterated
    once, `expected` first and wholly, so that the two do not share global generators half-way; seed before each if they draw.
    """
    wanted = [_kept(batch) for batch in expected]
    count = 0
    for count, batch in enumerate(actual, 1):
        if count > len(wanted):
            raise MismatchError(f"expected {len(wanted)} batches, found at least {count}")
        assert_same_batch(wanted[count - 1], batch, f"batch {count - 1}")
    if count != len(wanted):
        raise MismatchError(f"expected {len(wanted)} batches, found {count}")
    return count


def assert_same_batch(expected: Any, actual: Any, where: str = "batch") -> None:
    """Compare two batches part by part; raises MismatchError."""
    if type(expected) is not type(actual):
        raise MismatchError(f"{where}: expected a {type(expected).__name__}, found a {type(actual).__name__}")
    if isinstance(expected, list | tuple):
        if len(expected) != len(actual):
            raise MismatchError(f"{where}: expected {len(expected)} parts, found {len(actual)}")
        for k, (a, b) in enumerate(zip(expected, actual, strict=True)):
            assert_same_batch(a, b, f"{where}, part {k}")
    elif isinstance(expected, dict):
        if list(expected) != list(actual):
            raise MismatchError(f"{where}: expected the keys {list(expected)}, found {list(actual)}")
        for key in expected:
            assert_same_batch(expected[key], actual[key], f"{where}[{key!r}]")
    else:
        _same_part(expected, actual, where)


def _same_part(expected: Any, actual: Any, where: str) -> None:
    import torch

    if not isinstance(expected, torch.Tensor):
        if expected != actual:
            raise MismatchError(f"{where}: expected {expected!r}, found {actual!r}")
        return
    for name in ("dtype", "shape", "device"):
        if getattr(expected, name) != getattr(actual, name):
            raise MismatchError(f"{where}: expected {name} {getattr(expected, name)}, found {getattr(actual, name)}")
    if expected.stride() != actual.stride():
        raise MismatchError(f"{where}: expected strides {expected.stride()}, found {actual.stride()}")
    if not torch.equal(expected, actual):
        away = (expected.double() - actual.double()).abs()
        raise MismatchError(f"{where}: {int((away > 0).sum())} of {away.numel()} differ, at most by {float(away.max()):g}")
    if repr(expected.__dict__) != repr(actual.__dict__):
        raise MismatchError(f"{where}: expected metadata {expected.__dict__!r}, found {actual.__dict__!r}")


def _kept(batch: Any) -> Any:
    """A copy of a batch that later iteration cannot change."""
    import torch

    if isinstance(batch, list | tuple):
        return type(batch)(_kept(part) for part in batch)
    if isinstance(batch, dict):
        return type(batch)((key, _kept(part)) for key, part in batch.items())
    if not isinstance(batch, torch.Tensor):
        return batch
    twin = batch.clone()
    twin.__dict__.update(batch.__dict__)  # clone() leaves fastai's metadata behind
    return twin
