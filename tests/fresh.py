"""What a process of its own finds out for test_fresh_process.py, told as JSON: `python fresh.py TASK.json`.

The order matters: each step imports more than the one before, and the last changes fastai for good.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

BUILT_ON = ("fastai", "fasttransform", "torch", "PIL")
HEAVY = ("torch", "fastai", "numpy", "PIL", "matplotlib", "pandas")


def heavy() -> list[str]:
    return [name for name in HEAVY if name in sys.modules]


def without_fastload(task: dict[str, Any]) -> str:
    """Predictions of an exported learner where fastload cannot be imported, as hex."""
    mine = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "fastload"}
    sys.modules["fastload"] = None  # type: ignore[assignment]
    try:
        from fastai.vision import all as fv

        learn = fv.load_learner(task["learner"])
        learn.remove_cb(fv.ProgressCallback)
        preds, _ = learn.get_preds(dl=learn.dls.test_dl([Path(f) for f in task["files"]], num_workers=0))
        return str(preds.numpy().tobytes().hex())
    finally:
        del sys.modules["fastload"]
        sys.modules.update(mine)


def names() -> dict[tuple[str, str], int]:
    """The identity of everything that fastai, torch and Pillow hold."""
    owners = [
        (n, m) for n, m in list(sys.modules.items()) if n.split(".")[0] in ("fastai", "fasttransform", "torch", "PIL") and m
    ]
    return {(n, k): id(v) for n, m in owners for k, v in list(vars(m).items()) if not k.startswith("__")}


def patched_by_import() -> list[str]:
    """What importing fastload changed in the libraries it builds on."""
    import torch.utils.data  # noqa: F401
    from fastai.data import load  # noqa: F401

    before = names()
    import fastload.front
    import fastload.loader
    import fastload.vision  # noqa: F401

    after = names()
    return sorted(".".join(key) for key, value in before.items() if after.get(key) != value)


def switched_off(task: dict[str, Any]) -> list[str]:
    """The classes of the import swap's loaders under FASTLOAD=off, and of the table they take their iterators from."""
    from fastai.data import load

    from fastload import vision

    os.environ["FASTLOAD"] = "off"
    try:
        kw = {"bs": 4, "num_workers": 0}
        blocks = (vision.ImageBlock, vision.CategoryBlock)
        dblock = vision.DataBlock(
            blocks, get_items=vision.get_image_files, get_y=vision.parent_label, item_tfms=vision.Resize(16)
        )
        dls = vision.ImageDataLoaders.from_folder(task["images"], valid_pct=0.3, item_tfms=vision.Resize(16), **kw)
        made = [dls, dblock.dataloaders(task["images"], **kw), dblock.weighted_dataloaders(task["images"], [1.0] * 17, **kw)]
        for one in made:
            one.one_batch()
        classes = [type(dl) for one in made for dl in one.loaders]
        return sorted({f"{cls.__module__}.{cls.__name__}" for cls in (*classes, type(load._loaders))})
    finally:
        del os.environ["FASTLOAD"]


def resumed(task: dict[str, Any]) -> dict[str, str]:
    """A digest of what follows each saved state."""
    import test_resume
    from pictures import Pictures

    found = {}
    for key, state in task["states"].items():
        kind, workers = key.rsplit(" ", 1)
        dl = test_resume.accelerated(Pictures(Path(task["path"])), kind, int(workers))
        found[key] = test_resume.digest(test_resume.resumed(dl, state))
    return found


def extended(task: dict[str, Any]) -> str:
    """What fastload says of a loader once the user has added an `encodes` to ToTensor; "wrong" if a batch is not stock's."""
    from fastai.vision import all as fv
    from pictures import Pictures
    from sidebyside import SERIAL, assert_same_run, built, stock_run, warned, watch
    from test_resume import folder

    import fastload

    @fv.ToTensor
    def encodes(self: Any, image: fv.PILImage) -> Any:
        return fv.TensorImage(fv.image2tensor(image) // 2)

    make = lambda: folder(Pictures(Path(task["path"])), 0)  # noqa: E731
    with warned() as lines:
        assert_same_run(stock_run(make), watch(fastload.accelerate(built(make, 0), **SERIAL)))
    return "; ".join(lines)


def ran(task: dict[str, Any]) -> list[Any]:
    """Exit status of `fastload run` on a script, and the lines it printed."""
    from fastload.commands import main

    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            status: Any = main(["run", *task["run"]])
        except SystemExit as left:
            status = left.code
    return [status, out.getvalue().splitlines()]


def tell(task: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    import fastload

    told["import fastload"] = heavy()
    import fastload.commands

    fastload.commands.commands()
    told["import commands"] = heavy()
    from fastload.executors import executors

    executors()
    told["import executors"] = [name for name in heavy() if name == "fastai"]
    told["without fastload"] = without_fastload(task)
    for name in [name for name in sys.modules if name.split(".")[0] == "fastload"]:
        del sys.modules[name]
    told["patched by import"] = patched_by_import()
    told["off"] = switched_off(task)
    told["run"] = ran(task)
    told["resumed"] = resumed(task)
    told["extended"] = extended(task)
    return told


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    print(json.dumps(tell(json.loads(Path(sys.argv[1]).read_text()))))
