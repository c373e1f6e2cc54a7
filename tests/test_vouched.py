"""A user's transform is another one as soon as anything of the user's that decides its pixels is."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from fastai.vision.all import PILImage

from fastload.errors import CacheError
from fastload.vouched import digest, named, promised, unmet

SCRIPT = """
from functools import partial, wraps
import numpy as np
import torch
from fastai.vision.all import PILImage, Transform

LEVEL = 3
TABLE = np.arange(5000)
OPTIONS = {"a": [1, 2, (3, 4)]}

def helper(v):
    return v + LEVEL

def loops(v):
    return again(v)

def again(v):
    return loops(v)

def brighter(image: PILImage):
    return PILImage(image.point(lambda v: helper(v) + int(TABLE[2]) + OPTIONS["a"][0]))

def made(by):
    def inner(image: PILImage):
        return PILImage(image.point(lambda v: v + by))
    return inner

def plain(image: PILImage, by=1):
    return image

class Shift(Transform):
    def __init__(self, by): self.by = by
    def encodes(self, image: PILImage): return PILImage(image.point(lambda v: helper(v) + self.by))

class Base(Transform):
    by = 5
    def encodes(self, image: PILImage): return PILImage(image.point(lambda v: v + self.by))

class Sub(Base):
    pass

def doubled(function):
    @wraps(function)
    def outer(image: PILImage):
        return function(function(image))
    return outer

@doubled
def decorated(image: PILImage):
    return image

class Bound:
    def __init__(self, by): self.by = by
    def apply(self, image: PILImage): return PILImage(image.point(lambda v: v + self.by))

BOUND = [Bound(6).apply]

def bound(image: PILImage):
    return BOUND[0](image)

def endless(image: PILImage):
    return loops(image)

TFMS = {
    "brighter": Transform(brighter), "made": Transform(made(2)), "partial": Transform(partial(plain, by=2)),
    "sub": Sub(), "decorated": Transform(decorated), "bound": Transform(bound),
    "tensor": Shift(torch.tensor(0.5)), "class": Shift(4), "plain": Transform(plain), "endless": Transform(endless),
}
"""
CHANGES = {
    "LEVEL = 3": ("LEVEL = 4", {"brighter", "class", "tensor"}),
    "np.arange(5000)": ("np.where(np.arange(5000) == 2500, 0, np.arange(5000))", {"brighter"}),
    "(3, 4)": ("(3, 5)", {"brighter"}),
    "return v + LEVEL": ("return v - LEVEL", {"brighter", "class", "tensor"}),
    "made(2)": ("made(3)", {"made"}),
    "partial(plain, by=2)": ("partial(plain, by=3)", {"partial"}),
    "by=1": ("by=7", {"plain", "partial"}),
    "Shift(4)": ("Shift(5)", {"class"}),
    "helper(v) + self.by": ("helper(v) - self.by", {"class", "tensor"}),
    "by = 5": ("by = 6", {"sub"}),
    "function(function(image))": ("function(image)", {"decorated"}),
    "Bound(6)": ("Bound(7)", {"bound"}),
    "tensor(0.5)": ("tensor(0.49996)", {"tensor"}),
    "return loops(v)": ("return  loops(v)", {"endless"}),
}


def digests(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Of every transform of a script."""
    folder.mkdir()
    file = folder / "script.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location("script", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "script", module)
    spec.loader.exec_module(module)
    return {name: digest(tfm) for name, tfm in module.TFMS.items()}


@pytest.mark.parametrize("before", CHANGES)
def test_what_decides_the_pixels_decides_the_digest(tmp_path: Path, before: str, monkeypatch: pytest.MonkeyPatch) -> None:
    after, changed = CHANGES[before]
    assert before in SCRIPT
    one, same = (digests(tmp_path / name, SCRIPT, monkeypatch) for name in ("one", "same"))
    other = digests(tmp_path / "other", SCRIPT.replace(before, after), monkeypatch)
    assert one == same
    assert {name for name in one if one[name] != other[name]} == changed


class Held:
    """An object without a text of its own."""

    __slots__ = ("inside",)


def test_what_has_no_text_of_its_own_is_refused() -> None:
    from fasttransform import Transform

    class Odd(Transform):  # type: ignore[misc]  # fastai has no types
        def __init__(self, what: Any) -> None:
            self.what = what

    with pytest.raises(CacheError, match="Odd's what is <.*Held object at 0x.*go unnoticed"):
        digest(Odd(Held()))
    with pytest.raises(CacheError, match="source code of .*len can't be read|code of len"):
        digest(Transform(len))


def test_transforms_are_known_by_object_class_or_name() -> None:
    from fasttransform import Transform

    def mine(image: PILImage) -> PILImage:
        return image

    tfm = Transform(mine)
    for given in (mine, tfm, "mine"):
        found = promised([given])(tfm)
        assert found is not None
        assert found[0].endswith("mine")
        assert named({found[0]})(tfm) == found
    assert promised(["other"])(tfm) is None
    assert unmet([mine, tfm, "mine", "other"], [tfm]) == ["other"]
    assert named(set())(tfm) is None
