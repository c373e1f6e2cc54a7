"""TARGETs: a folder with a named standard pipeline, or `file.py:function` that returns a DataLoaders or a Learner.

A folder holds one sub-folder per class, below `train` and `valid` where those exist; otherwise a fifth is set apart by seed 42.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastload.errors import DataError

__all__ = ["RECIPES", "Target", "add_target_arguments", "open_target", "require", "target_of"]

VALID_SHARE, SPLIT_SEED = 0.2, 42
MOST_PIXELS = 8192  # a side of what a model is given; far beyond any in use, far below what fills memory by a slip of the hand


@dataclass(frozen=True)
class Target:
    """What a command works on, before anything is opened: `where` as typed, and the folder's recipe, size and batch size."""

    where: str
    recipe: str = "imagenet"
    size: int = 224
    bs: int = 64
    workers: int | None = None

    def __post_init__(self) -> None:
        if self.recipe not in RECIPES:
            raise DataError(f"there is no recipe {self.recipe!r}; there are {', '.join(RECIPES)}")
        if not 1 <= self.size <= MOST_PIXELS or self.bs < 1:
            raise DataError(f"size must be 1 to {MOST_PIXELS} and bs at least 1, found size={self.size} bs={self.bs}")
        if self.workers is not None and self.workers < 0:
            raise DataError(f"num-workers must be at least 0, found {self.workers}")

    @property
    def is_function(self) -> bool:
        """Whether it names a function in a Python file."""
        return not Path(self.where).is_dir() and ".py:" in self.where


def _imagenet(size: int) -> tuple[list[Any], list[Any]]:
    from fastai.vision.all import Normalize, RandomResizedCrop, aug_transforms, imagenet_stats

    return [RandomResizedCrop(size)], [*aug_transforms(), Normalize.from_stats(*imagenet_stats)]


def _presize(size: int) -> tuple[list[Any], list[Any]]:
    from fastai.vision.all import Normalize, Resize, aug_transforms, imagenet_stats

    return [Resize(size * 460 // 224)], [
        *aug_transforms(size=size, min_scale=0.75),
        Normalize.from_stats(*imagenet_stats),
    ]


def _squish(size: int) -> tuple[list[Any], list[Any]]:
    from fastai.vision.all import Normalize, Resize, ResizeMethod, imagenet_stats

    return [Resize(size, ResizeMethod.Squish)], [Normalize.from_stats(*imagenet_stats)]


RECIPES: dict[str, Callable[[int], tuple[list[Any], list[Any]]]] = {
    "imagenet": _imagenet,
    "presize": _presize,
    "squish": _squish,
}


def add_target_arguments(parser: Any) -> None:
    """TARGET and the options of a folder."""
    parser.add_argument("target", metavar="TARGET", help="a folder of class folders, or file.py:function")
    parser.add_argument("--recipe", choices=sorted(RECIPES), help="a folder's pipeline (default: imagenet)")
    parser.add_argument("--size", type=int, help="image size in pixels (default: 224)")
    parser.add_argument("--bs", type=int, help="batch size (default: 64)")
    parser.add_argument("--num-workers", type=int, default=None, help="fastai's num_workers (default: fastai's own)")


def target_of(args: Any) -> Target:
    """The Target of a command's arguments; options of a folder that stand beside a function are refused, not ignored."""
    given = {k: v for k in ("recipe", "size", "bs", "num_workers") if (v := getattr(args, k)) is not None}
    if "num_workers" in given:
        given["workers"] = given.pop("num_workers")
    target = Target(args.target, **given)
    if target.is_function and given:
        raise DataError(f"{', '.join(given)} belong to a folder; {args.target} decides them itself")
    return target


def open_target(target: Target, seed: int | None = None) -> Any:
    """A stock DataLoaders (or the Learner that the function returned). Raises DataError where there is nothing to open."""
    from fastai.torch_core import set_seed

    require(target)
    if seed is not None:
        set_seed(seed)
    if target.is_function:
        with redirect_stdout(sys.stderr):  # stdout is for the command's result
            return _call(target.where)
    return _folder(target)


def require(target: Target) -> None:
    """Raise DataError at once where there is no such folder or file, before anything slow is begun."""
    where, path = target.where, Path(target.where)
    if not where:
        raise DataError("expected a folder or file.py:function, found an empty TARGET")
    if target.is_function:
        file = where.rpartition(":")[0]
        if not Path(file).is_file():
            raise DataError(f"expected file.py:function, found {where!r}: there is no file {file}")
    elif path.is_file():
        raise DataError(
            f"expected a folder or file.py:function, found the file {where!r}; name the function in it, as in {where}:get_dls"
        )
    elif not path.is_dir():
        raise DataError(f"expected a folder or file.py:function, found {where!r}: neither exists")


def _folder(target: Target) -> Any:
    from fastai.vision.all import ImageDataLoaders, get_image_files

    path = Path(target.where)
    split = (path / "train").is_dir() and (path / "valid").is_dir()
    items, batches = RECIPES[target.recipe](target.size)
    if not get_image_files(path):
        raise DataError(f"there is no image file in {path}; give a folder that holds one folder of images per class")
    place = {} if split else {"valid_pct": VALID_SHARE, "seed": SPLIT_SEED}
    workers = {} if target.workers is None else {"num_workers": target.workers}
    options = {"item_tfms": items, "batch_tfms": batches, "bs": target.bs, **place, **workers}
    try:
        return ImageDataLoaders.from_folder(path, **options)
    except Exception as err:
        raise DataError(
            f"fastai could not open {path} ({_said(err)}); `fastload check {path}` says what is wrong with it"
        ) from err


def _call(where: str) -> Any:
    file, _, name = where.rpartition(":")
    path = Path(file).resolve()
    spec = importlib.util.spec_from_file_location(f"fastload_target_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise DataError(f"{file} can't be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as err:
        raise DataError(f"{file} can't be imported: {_said(err)}") from err
    finally:
        sys.path.remove(str(path.parent))
    function = getattr(module, name, None)
    if not callable(function):
        known = sorted(k for k, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == spec.name)
        raise DataError(f"{file} has no function {name!r}; it has {', '.join(known) or 'none'}")
    try:
        made = function()
    except Exception as err:
        raise DataError(f"{where} raised {_said(err)}") from err
    return _checked(made, where)


def _said(err: Exception) -> str:
    """Type and words of an error on one line."""
    return " ".join(f"{type(err).__name__}: {err}".split())


def _checked(made: Any, where: str) -> Any:
    if not hasattr(getattr(made, "dls", made), "loaders"):
        raise DataError(f"{where} returned a {type(made).__name__}; it has to return a DataLoaders or a Learner")
    return made
