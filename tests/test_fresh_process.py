"""Promises that only a new process can show, all told by one (fresh.py): importing fastai takes longer than these tests do."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pictures import Pictures
from sidebyside import stock_only
from test_learner import exported  # noqa: F401  # a fixture
from test_resume import accelerated, digest, interrupted

CHILD_S = 110
SCRIPT = """
import sys
import warnings; warnings.simplefilter("ignore")
from helper_module import SIZE
from fastai.vision.all import *
if __name__ == "__main__":
    set_seed(3)
    dls = ImageDataLoaders.from_folder(sys.argv[1], valid_pct=0.3, item_tfms=RandomResizedCrop(SIZE), bs=4, num_workers=2)
    learn = Learner(dls, nn.Sequential(nn.Conv2d(3, 3, 5), nn.AdaptiveAvgPool2d(1), nn.Flatten()), metrics=accuracy)
    with learn.no_bar(), learn.no_logging():
        learn.fit(2, 0.05)
    print([x.item().hex() for x in learn.recorder.losses], [[float(v).hex() for v in r] for r in learn.recorder.values])
    print(sys.argv[2:], type(dls.train).__name__, sum(p.sum() for p in learn.model.parameters()).item().hex())
    print(type(sys.modules["fastai.data.load"]._loaders).__name__)
    sys.exit(int(sys.argv[3]))
"""
STATES = (("augmented", 0), ("augmented", 2), ("weighted", 3), ("stock", 2))


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "FASTLOAD"}


@pytest.fixture(scope="module")
def script(pictures: Pictures, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A training script beside a module of its own, and its arguments; it leaves with status 5."""
    folder = tmp_path_factory.mktemp("script")
    (folder / "helper_module.py").write_text("SIZE = 24\n")
    (folder / "train.py").write_text(SCRIPT)
    return [str(folder / "train.py"), str(pictures.images), "--lr", "5"]


@pytest.fixture(scope="module")
def digests(pictures: Pictures) -> dict[str, tuple[dict[str, Any], str]]:
    """States saved in the middle of an epoch, each with a digest of what follows."""
    made = {f"{kind} {workers}": interrupted(accelerated(pictures, kind, workers), 2) for kind, workers in STATES}
    return {key: (state, digest(seen)) for key, (state, seen) in made.items()}


@pytest.fixture(scope="module")
def told(
    pictures: Pictures,
    exported: tuple[Path, Any],  # noqa: F811
    script: list[str],
    digests: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """What the new process found out."""
    task = {
        "path": str(pictures.path),
        "images": str(pictures.images),
        "files": [str(f) for f in pictures.files[:7]],
        "learner": str(exported[0]),
        "run": script,
        "states": {key: state for key, (state, _) in digests.items()},
    }
    file = tmp_path_factory.mktemp("task") / "task.json"
    file.write_text(json.dumps(task))
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("fresh.py")), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_S, env=environment())
    assert 0 == done.returncode, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_importing_fastload_and_its_commands_loads_nothing_heavy(told: dict[str, Any]) -> None:
    assert [[], []] == [told["import fastload"], told["import commands"]]


def test_executors_need_no_fastai(told: dict[str, Any]) -> None:
    assert [] == told["import executors"]


def test_importing_the_swap_patches_nothing(told: dict[str, Any]) -> None:
    assert [] == told["patched by import"]


def test_fastload_off_gives_stock_classes(told: dict[str, Any]) -> None:
    assert ["builtins.tuple", "fastai.callback.data.WeightedDL", "fastai.data.core.TfmdDL"] == told["off"]


def test_an_exported_learner_loads_where_fastload_is_not_installed(
    told: dict[str, Any],
    exported: tuple[Path, Any],  # noqa: F811
) -> None:
    assert exported[1].numpy().tobytes().hex() == told["without fastload"]


def test_a_saved_epoch_goes_on_with_the_same_batches(told: dict[str, Any], digests: dict[str, Any]) -> None:
    assert {key: text for key, (_, text) in digests.items()} == told["resumed"]


def test_an_encodes_added_to_to_tensor_is_refused(told: dict[str, Any]) -> None:
    assert "this loader stays with stock fastai: ToTensor.encodes is not fastai's own any more" == told["extended"]


def plain(script: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[Any]:
    """Exit status and lines of the script under plain python, in this process."""
    monkeypatch.setattr(sys, "argv", script)
    monkeypatch.syspath_prepend(str(Path(script[0]).parent))
    with stock_only(), pytest.raises(SystemExit) as left:
        runpy.run_path(script[0], run_name="__main__")
    return [left.value.code, capsys.readouterr().out.splitlines()]


def test_fastload_run_gives_what_plain_python_gives(
    told: dict[str, Any], script: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, lines = plain(script, monkeypatch, capsys)
    assert [status, lines[:-1]] == [told["run"][0], told["run"][1][:-1]]
    assert ["tuple", "_Table"] == [lines[-1], told["run"][1][-1]]


@pytest.mark.slow
def test_fastload_run_as_a_command_gives_what_plain_python_gives(
    script: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "fastload", "run", *script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_S, env=environment())
    status, lines = plain(script, monkeypatch, capsys)
    assert [status, lines[:-1]] == [done.returncode, done.stdout.splitlines()[:-1]], done.stderr


# Every way to change what fastai does that fastload stands in for, each in a process of its own.
EXTENSIONS = {
    "ToTensor.encodes": "@ToTensor\ndef encodes(self, o: PILImage): return o._tensor_cls(image2tensor(o)) + 1",
    "Resize.encodes": "@Resize\ndef encodes(self, x: PILImage): return x.resize((24, 24))",
    "fastai.vision.core.load_image": (
        "from fastai.vision import core\nload = core.load_image\ncore.load_image = lambda *a, **k: load(*a, **k).rotate(90)"
    ),
    "Image.flip_lr": "@patch\ndef flip_lr(x: Image.Image): return x",
    "PILImage._open_args": "PILImage._open_args = {'mode': 'HSV'}",
}
_EXTENDED = """
import sys
sys.path.insert(0, {here!r})
import warnings; warnings.simplefilter("ignore")
from pathlib import Path
from fastai.vision.all import *
from pictures import Pictures
from sidebyside import SERIAL, assert_as_stock
from pipelines import ITEM_TFMS, folder
from PIL import Image
{extension}
make = folder(Pictures(Path({path!r})), ITEM_TFMS["flip_half"])
assert_as_stock(make, ways=(SERIAL,), stays={reason!r})
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", EXTENSIONS)
def test_an_extension_of_fastai_is_refused_by_name(pictures: Pictures, name: str) -> None:
    here = str(Path(__file__).parent)
    code = _EXTENDED.format(here=here, extension=EXTENSIONS[name], path=str(pictures.path), reason=name)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=CHILD_S, env=environment())
    assert 0 == done.returncode, done.stderr
