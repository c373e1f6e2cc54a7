"""The import swap, factory by factory: whichever way fastai makes loaders, after the swap they are fastload's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from fastai.vision import all as stock_vision
from pictures import Pictures

import fastload
from fastload import vision
from fastload.wrap import Accelerated

Factory = Callable[[Any, Pictures, dict[str, Any]], Any]
BLOCKS = (stock_vision.ImageBlock, stock_vision.CategoryBlock)


def _labels(p: Pictures) -> list[str]:
    return [f.parent.name for f in p.files]


def _block(v: Any, p: Pictures) -> Any:
    return v.DataBlock(BLOCKS, get_items=lambda _: p.files, get_y=stock_vision.parent_label, item_tfms=v.Resize(16))


def _from_dblock(cls: str) -> Factory:
    return lambda v, p, kw: getattr(v, cls).from_dblock(_block(v, p), p.images, bs=4)


def _from_dsets(cls: str) -> Factory:
    def make(v: Any, p: Pictures, kw: dict[str, Any]) -> Any:
        dsets = _block(v, p).datasets(p.images)
        return getattr(v, cls).from_dsets(dsets.train, dsets.valid, bs=4, after_item=[v.Resize(16), v.ToTensor()])

    return make


IMAGES: dict[str, Factory] = {
    "from_csv": lambda v, p, kw: v.ImageDataLoaders.from_csv(p.path, "labels.csv", **kw),
    "from_dblock": _from_dblock("ImageDataLoaders"),
    "from_df": lambda v, p, kw: v.ImageDataLoaders.from_df(pd.read_csv(p.path / "labels.csv"), p.path, **kw),
    "from_dsets": _from_dsets("ImageDataLoaders"),
    "from_folder": lambda v, p, kw: v.ImageDataLoaders.from_folder(p.images, valid_pct=0.3, **kw),
    "from_lists": lambda v, p, kw: v.ImageDataLoaders.from_lists(p.path, p.files, _labels(p), **kw),
    "from_name_func": lambda v, p, kw: v.ImageDataLoaders.from_name_func(p.images, p.files, lambda name: name[0] == "c", **kw),
    "from_name_re": lambda v, p, kw: v.ImageDataLoaders.from_name_re(p.images, p.files, r"^(.*)_\d+\.", **kw),
    "from_path_func": lambda v, p, kw: v.ImageDataLoaders.from_path_func(p.images, p.files, lambda f: f.parent.name, **kw),
    "from_path_re": lambda v, p, kw: v.ImageDataLoaders.from_path_re(p.images, p.files, r"/([^/]+)_\d+\.", **kw),
}
MASKS: dict[str, Factory] = {
    "from_dblock": _from_dblock("SegmentationDataLoaders"),
    "from_dsets": _from_dsets("SegmentationDataLoaders"),
    "from_label_func": lambda v, p, kw: v.SegmentationDataLoaders.from_label_func(
        p.images, p.files, lambda f: p.mask(f), codes=list("abcd"), **kw
    ),
}
OTHERS: dict[str, Factory] = {
    "DataBlock.dataloaders": lambda v, p, kw: _block(v, p).dataloaders(p.images, bs=4),
    "DataBlock.weighted_dataloaders": lambda v, p, kw: _block(v, p).weighted_dataloaders(
        p.images, wgts=[1.0] * len(p.files), bs=4
    ),
}


def _keywords() -> dict[str, Any]:
    return {"seed": 1, "bs": 4, "num_workers": 0, "device": "cpu", "item_tfms": stock_vision.Resize(16)}


def _name(case: tuple[str, Factory]) -> str:
    return case[0]


@pytest.mark.parametrize("case", [*IMAGES.items(), *MASKS.items(), *OTHERS.items()], ids=_name)
def test_every_factory_gives_fastloads_loaders(pictures: Pictures, case: tuple[str, Factory]) -> None:
    keywords = _keywords()
    made = case[1](vision, pictures, keywords)
    assert [True, True] == [isinstance(dl, Accelerated) for dl in made.loaders]
    wanted = type(case[1](stock_vision, pictures, keywords))
    assert wanted.__name__ == type(made).__name__
    assert len(next(iter(made.train))[0]) == 4


@pytest.mark.parametrize(
    ("name", "tested"), [("ImageDataLoaders", IMAGES), ("SegmentationDataLoaders", MASKS)], ids=["images", "masks"]
)
def test_no_factory_is_left_out(name: str, tested: dict[str, Factory]) -> None:
    theirs = {n for n in dir(getattr(stock_vision, name)) if n.startswith("from_")}
    assert theirs == tested.keys()
    assert theirs == {n for n in dir(getattr(vision, name)) if n.startswith("from_")}


def test_a_factory_keeps_fastais_signature_and_text() -> None:
    import inspect

    for name in IMAGES:
        theirs, ours = getattr(stock_vision.ImageDataLoaders, name), getattr(vision.ImageDataLoaders, name)
        if name not in ("from_dblock", "from_dsets"):
            assert inspect.signature(theirs) == inspect.signature(ours), name
            assert theirs.__doc__ == ours.__doc__, name


def test_keywords_of_fastload_are_taken_by_every_factory(pictures: Pictures) -> None:
    made = vision.ImageDataLoaders.from_name_func(
        pictures.images, pictures.files, lambda name: name[0] == "c", **_keywords(), threads=1, executor="serial"
    )
    assert "serial" in str(made.train._fastload_of().settings.executor)


def test_an_unknown_keyword_is_warned_of_once_at_the_users_line(pictures: Pictures) -> None:
    with pytest.warns(UserWarning, match="thread=") as caught:
        vision.ImageDataLoaders.from_folder(pictures.images, valid_pct=0.3, **_keywords(), thread=3)
    assert [__file__] == [w.filename for w in caught if "thread=" in str(w.message)]


def test_a_loader_that_stands_alone_is_called_after_its_split(pictures: Pictures) -> None:
    dls = vision.ImageDataLoaders.from_folder(pictures.images, valid_pct=0.3, **_keywords())
    assert ["train", "valid"] == [s.title for s in fastload.explain(dls).sections]
    assert [["train"], ["valid"]] == [[s.title for s in fastload.explain(dl).sections] for dl in dls.loaders]
