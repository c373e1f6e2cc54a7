"""What fastai, its callbacks and its users touch on a loader is there on an accelerated one, and is what stock has there."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fastai.callback.data import PartialDL, WeightedDL
from fastai.data.core import DataLoaders, Datasets, TfmdDL
from fastai.data.load import DataLoader, _FakeLoader
from fastai.vision import all as fv
from fasttransform import Pipeline
from pictures import Pictures
from sidebyside import built, seed_all, stock_only

import fastload
from fastload import vision as fast_vision
from fastload.intercept import attached_to

# Everything the running library reads of a loader, but iteration itself.
VALUES = (
    *("bs", "n", "drop_last", "shuffle", "indexed", "timeout", "pin_memory", "device", "num_workers", "offs", "prebatched"),
    *("n_inp", "vocab", "c", "items", "split_idx"),
)
FAKE_VALUES = (
    *("num_workers", "pin_memory", "timeout", "persistent_workers", "pin_memory_device", "prefetch_factor", "drop_last"),
    *("in_order", "generator", "_auto_collation", "_dataset_kind", "dataset_kind", "_IterableDataset_len_called"),
)
PIPELINES = ("after_item", "before_batch", "after_batch")
METHODS = (
    *("create_batches", "do_item", "create_item", "chunkify", "do_batch", "create_batch", "retain", "wif", "before_iter"),
    *("after_iter", "get_idxs", "sample", "shuffle_fn", "randomize", "new", "one_batch", "to", "decode", "decode_batch"),
    *("show_batch", "show_results", "_decode_batch", "_pre_show_batch", "_retain_dl", "_one_pass"),
)


def make(vision: Any, p: Pictures, **kw: Any) -> Any:
    """A usual DataLoaders from one seed."""
    tfms = {"item_tfms": vision.RandomResizedCrop(24), "batch_tfms": [vision.Flip(), vision.Normalize()]}
    options = {"valid_pct": 0.3, "seed": 1, "bs": 4, "device": "cpu", "num_workers": 2} | tfms | kw
    return built(lambda: vision.ImageDataLoaders.from_folder(p.images, **options))


@pytest.fixture
def pair(pictures: Pictures) -> tuple[Any, Any]:
    """Stock's loaders, and those of the import swap."""
    with stock_only():
        return make(fv, pictures), make(fast_vision, pictures)


def swapped(pictures: Pictures) -> Any:
    return make(fast_vision, pictures)


def accelerated(pictures: Pictures) -> Any:
    return fastload.accelerate(make(fv, pictures))


WAYS = [swapped, accelerated]


# DataLoaders.


@pytest.mark.parametrize("way", WAYS)
def test_loaders_lie_in_fastais_own_dataloaders(pictures: Pictures, way: Callable[[Pictures], Any]) -> None:
    dls = way(pictures)
    assert DataLoaders is type(dls)
    assert [list, 2] == [type(dls.loaders), len(dls)]
    assert (dls[0], dls[1]) == (dls.train, dls.valid)
    assert pictures.images == dls.path
    assert torch.device("cpu") == dls.train.device
    assert (dls.train.dataset, dls.valid.dataset) == (dls.train_ds, dls.valid_ds)


def test_dataloaders_values_are_stocks(pair: tuple[Any, Any]) -> None:
    stock, fast = pair
    for name in ("vocab", "c", "bs", "n", "n_inp", "device"):
        assert getattr(stock, name) == getattr(fast, name), name
    assert len(stock.train_ds) == len(fast.train_ds)
    assert [len(dl) for dl in stock.loaders] == [len(dl) for dl in fast.loaders]


@pytest.mark.parametrize("way", WAYS)
def test_dataloaders_methods_work(pictures: Pictures, way: Callable[[Pictures], Any]) -> None:
    dls = way(pictures)
    train, valid = dls.loaders
    dls.train, dls.valid = valid, train
    assert [valid, train] == dls.loaders
    dls.train, dls.valid = train, valid
    assert dls.new_empty() is not None
    assert dls is dls.to("cpu")
    assert dls is dls.cpu()
    assert "cpu" == str(dls.device)
    dls.device = "cpu"
    assert 2 == len(dls.test_dl(pictures.files[:5]))
    dls.add_tfms([fv.Flip()], "after_batch")
    assert {"Flip"} <= {type(f).__name__ for f in dls.train.after_batch.fs}


def test_bs_of_a_loader_takes_effect_at_the_next_iteration(pictures: Pictures) -> None:
    dls = swapped(pictures)
    dls.bs = 1
    assert 4 == dls.train.bs
    dls.train.bs = 6
    assert [6, 6] == [len(b[0]) for b in dls.train]


# One loader.


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("kw", [{}, {"bs": 3}, {"num_workers": 0}, {"drop_last": False}, {"shuffle": False}, {"n": 7}])
def test_every_value_is_stocks(pictures: Pictures, which: int, kw: dict[str, Any]) -> None:
    with stock_only():
        stock = make(fv, pictures, **kw).loaders[which]
    fast = make(fast_vision, pictures, **kw).loaders[which]
    assert len(stock) == len(fast)
    for name in VALUES:
        assert getattr(stock, name, "none") == getattr(fast, name, "none"), name
    for name in FAKE_VALUES:
        assert getattr(stock.fake_l, name, "none") == getattr(fast.fake_l, name, "none"), name
    assert stock.rng.getstate() == fast.rng.getstate()
    assert [set(stock.__dict__)] == [set(fast.__dict__) - {"_fl"}]


@pytest.mark.parametrize("way", WAYS)
def test_the_loader_is_a_fastai_loader(pictures: Pictures, way: Callable[[Pictures], Any]) -> None:
    for dl in way(pictures).loaders:
        assert isinstance(dl, TfmdDL) and isinstance(dl, DataLoader)
        assert _FakeLoader is type(dl.fake_l)
        assert (dl, dl.fake_l) == (dl.fake_l.d, dl.fake_l.dataset)
        assert Datasets is type(dl.dataset)
        assert [Pipeline] * 3 == [type(getattr(dl, name)) for name in PIPELINES]


@pytest.mark.parametrize("way", WAYS)
def test_every_method_is_fastais_but_those_named_here(pictures: Pictures, way: Callable[[Pictures], Any]) -> None:
    dl = way(pictures).train
    assert all(callable(getattr(dl, name)) for name in METHODS)
    own = {name for name in METHODS if getattr(type(dl), name) is not getattr(TfmdDL, name)}
    assert {"new", "one_batch", "randomize"} == own
    assert {"state_dict", "load_state_dict"} == {n for n in dir(type(dl)) if not hasattr(TfmdDL, n) and not n.startswith("_")}


def test_no_name_of_the_data_set_is_shadowed(pictures: Pictures) -> None:
    dl = swapped(pictures).train
    for name in ("items", "vocab", "c", "splits", "tls", "tfms", "subset", "split_idx", "loss_func", "n_subsets"):
        wanted = getattr(dl.dataset, name, None)
        found = getattr(dl, name, None)
        assert inspect.ismethod(wanted) or repr(wanted) == repr(found), name


def test_an_unknown_name_raises_attribute_error(pictures: Pictures) -> None:
    dl = swapped(pictures).train
    assert not hasattr(dl, "to_detach")
    with pytest.raises(AttributeError):
        dl.nothing_of_that_name  # noqa: B018


def test_dir_holds_what_stocks_dir_holds(pair: tuple[Any, Any]) -> None:
    stock, fast = pair
    assert set() == set(dir(stock.train)) - set(dir(fast.train))


def test_num_workers_stays_what_stock_has(pictures: Pictures) -> None:
    dl = swapped(pictures).train
    assert (1, 0, 2) == (dl.num_workers, dl.offs, dl.fake_l.num_workers)
    list(dl)
    assert (1, 0, 2) == (dl.num_workers, dl.offs, dl.fake_l.num_workers)
    with dl.fake_l.no_multiproc() as inner:
        assert (dl, 0) == (inner, dl.fake_l.num_workers)
    dl.one_batch()
    assert 2 == dl.fake_l.num_workers
    assert not hasattr(dl, "it")


def test_workers_set_on_fake_l_are_the_virtual_workers(pictures: Pictures) -> None:
    with stock_only():
        wanted = make(fv, pictures)
        seed_all(5)
        expected = [b[0] for b in wanted.train]
    dls = make(fast_vision, pictures, num_workers=0)
    dls.train.fake_l.num_workers = 2
    seed_all(5)
    assert all(torch.equal(a, b[0]) for a, b in zip(expected, dls.train, strict=True))


@pytest.mark.parametrize("given", ["cpu", torch.device("cpu"), None])
def test_the_device_setter_works_as_in_stock(pictures: Pictures, given: Any) -> None:
    dl = swapped(pictures).train
    dl.device = given
    assert (None if given is None else torch.device("cpu")) == dl.device
    dl.to("cpu")
    assert torch.device("cpu") == dl.device
    assert torch.device("cpu") == next(iter(dl))[0].device


@pytest.mark.parametrize("way", WAYS)
def test_new_keeps_what_stock_keeps(pictures: Pictures, way: Callable[[Pictures], Any]) -> None:
    with stock_only():
        stock = make(fv, pictures)
    fast = way(pictures)
    changes = ({}, {"bs": 2}, {"shuffle": False, "drop_last": True}, {"num_workers": 0}, {"process": 3, "shuffled": True})
    for kw in changes:
        a, b = stock.valid.new(**kw), fast.valid.new(**kw)
        for name in (*VALUES, "_n_inp", "_types"):
            assert repr(getattr(a, name, "none")) == repr(getattr(b, name, "none")), name
        assert a.fake_l.num_workers == b.fake_l.num_workers
        assert attached_to(b) is not None
    assert len(stock.valid.new(stock.train_ds)) == len(fast.valid.new(fast.train_ds))
    assert TfmdDL is type(fast.valid.new(cls=TfmdDL))


def test_methods_given_to_new_are_carried_as_in_stock(pictures: Pictures) -> None:
    idxs = types.SimpleNamespace(get=lambda: [2, 0])
    dl = swapped(pictures).valid.new(get_idxs=idxs.get)
    assert [2, 0] == dl.new().get_idxs() == dl.get_idxs()


def test_sampling_methods_give_stocks_indices(pair: tuple[Any, Any]) -> None:
    stock, fast = pair
    for dl in (stock.train, fast.train):
        dl.rng.seed(8)
        dl._DataLoader__idxs = dl.get_idxs()
    assert list(stock.train.sample()) == list(fast.train.sample())
    stock.train.randomize()
    fast.train.randomize()
    assert stock.train.rng.getstate() == fast.train.rng.getstate()


def test_items_and_batches_may_be_made_by_hand(pair: tuple[Any, Any]) -> None:
    items = []
    for dls in pair:
        dl = dls.valid
        dl.before_iter()
        seed_all(6)
        batch = dl.do_batch([dl.do_item(k) for k in range(3)])
        items.append([*batch, *next(dl.create_batches([1, 2, 0])), *dl.decode(dl.after_batch(batch))])
    assert all(torch.equal(a, b) for a, b in zip(*items, strict=True))


def test_decode_batch_gives_stocks_items(pair: tuple[Any, Any]) -> None:
    decoded = []
    for dls in pair:
        seed_all(6)
        decoded.append(dls.valid.decode_batch(dls.valid.one_batch()))
    assert [str(label) for _, label in decoded[0]] == [str(label) for _, label in decoded[1]]
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(*decoded, strict=True))
    assert [fv.TensorImage, fv.TensorCategory] == [type(part) for part in pair[1].valid.one_batch()]


def test_setup_of_batch_transforms_sees_a_batch(pair: tuple[Any, Any]) -> None:
    means = [next(f for f in dls.after_batch.fs if type(f) is fv.Normalize).mean for dls in pair]
    assert torch.equal(*means)


def test_an_empty_loader_raises_stocks_error(pictures: Pictures) -> None:
    dl = swapped(pictures).valid.new(n=0)
    with pytest.raises(ValueError, match="This DataLoader does not contain any batches"):
        dl.one_batch()
    assert [] == list(dl)


# Other classes of loader.


@pytest.mark.parametrize("cls", [WeightedDL, PartialDL])
def test_other_loader_classes_keep_their_own(pictures: Pictures, cls: Any) -> None:
    kw = {"batch_tfms": None} | ({"partial_n": 6} if cls is PartialDL else {})
    with stock_only():
        stock = make(fv, pictures, dl_type=cls, **kw)
    fast = make(fast_vision, pictures, dl_type=cls, **kw)
    assert isinstance(fast.train, cls)
    assert len(stock.train) == len(fast.train)
    for dl in (stock.train, fast.train):
        np.random.seed(3)
        dl.seen = list(dl.get_idxs())
    assert stock.train.seen == fast.train.seen
    for name in ("wgts", "partial_n"):
        assert np.array_equal(getattr(stock.train, name, 0), getattr(fast.train, name, 0))


def test_twin_classes_are_made_once(pictures: Pictures) -> None:
    assert type(swapped(pictures).train) is type(accelerated(pictures).valid)
    dls = accelerated(pictures)
    cls = type(dls.train)
    assert cls is type(fastload.accelerate(fastload.accelerate(dls, threads=2)).train)
    assert (cls.__bases__[1], TfmdDL.__doc__) == (TfmdDL, cls.__doc__)


def test_accelerate_returns_what_it_was_given(pictures: Pictures) -> None:
    dls = make(fv, pictures)
    learn = fv.Learner(dls, torch.nn.Linear(1, 1), loss_func=torch.nn.MSELoss())
    assert dls is fastload.accelerate(dls)
    assert dls.train is fastload.accelerate(dls.train)
    assert learn is fastload.accelerate(learn)
