"""channels_last=True: equal values, another order in memory, through every executor and the fused batch transforms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pictures import Pictures
from sidebyside import WAYS, seed_all

import fastload
from fastload import native
from fastload.errors import SettingsError


def loaders(pictures: Pictures, **how: Any) -> Any:
    from fastload.vision import ImageDataLoaders, Resize, aug_transforms

    seed_all(2)
    batch_tfms = aug_transforms() if how.get("batch") == "fused" else None
    return ImageDataLoaders.from_folder(
        pictures.images, valid_pct=0.3, seed=1, item_tfms=Resize((20, 28)), batch_tfms=batch_tfms, bs=4, num_workers=1, **how
    )


def batches(dls: Any) -> list[Any]:
    seed_all(3)
    return [batch[0] for dl in (dls.train, dls.valid) for batch in dl]


@pytest.mark.parametrize("way", WAYS, ids=lambda w: w["executor"])
def test_values_are_equal_and_channels_lie_last(pictures: Pictures, way: dict[str, Any]) -> None:
    for a, b in zip(batches(loaders(pictures, **way)), batches(loaders(pictures, channels_last=True, **way)), strict=True):
        assert torch.equal(a, b)
        assert type(a) is type(b)
        assert a.is_contiguous()
        assert b.is_contiguous(memory_format=torch.channels_last)
        assert not b.is_contiguous()


@pytest.mark.skipif(native.extension() is None, reason="the native extension was not built")
def test_fused_batches_stay_channels_last(pictures: Pictures) -> None:
    plain, last = (batches(loaders(pictures, batch="fused", channels_last=c)) for c in (False, True))
    for a, b in zip(plain, last, strict=True):
        assert torch.equal(a, b)
        assert b.is_contiguous(memory_format=torch.channels_last)


def test_skipped_images_leave_it_channels_last(tmp_path: Any) -> None:
    from pictures import make_pictures

    made = make_pictures(tmp_path / "set")
    dls = loaders(made, channels_last=True, bad_images="skip")
    dls.train.items[2].write_bytes(b"no picture")
    seed_all(3)
    sizes = []
    for batch in dls.train:
        sizes.append(len(batch[0]))
        assert batch[0].is_contiguous(memory_format=torch.channels_last)
    assert sorted(sizes) == [3, 4, 4]
    assert list(fastload.counters(dls.train)[0]["skipped"]) == [str(dls.train.items[2])]


def test_it_is_explained_and_checked(pictures: Pictures) -> None:
    assert "channels_last=True: equal values" in str(fastload.explain(loaders(pictures, channels_last=True)))
    with pytest.raises(SettingsError, match="channels_last"):
        loaders(pictures, channels_last="yes")
