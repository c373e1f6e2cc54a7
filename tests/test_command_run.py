"""`fastload run`: scripts and modules run as python would run them; arguments of TARGETs that make no sense are one error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fastload.commands import main

_TELLS = """\
import json, sys
from fastai.vision.all import *
print(json.dumps([__name__, sys.argv[1:], sys.path[0], __package__]))
sys.exit(7)
"""


def test_a_module_is_run_as_python_runs_it(tmp_path: Path) -> None:
    for place in ("pack/train.py", "pack/__main__.py"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(_TELLS)
    for name in ("pack.train", "pack"):
        told = []
        for command in (["-m", name], ["-m", "fastload", "run", "-m", name]):
            done = subprocess.run(
                [sys.executable, "-W", "ignore", *command, "--lr", "1"],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 7, done.stderr
            told.append(json.loads(done.stdout.splitlines()[-1]))
        assert told[0] == told[1] == ["__main__", ["--lr", "1"], str(tmp_path), "pack"]


@pytest.mark.parametrize("name", ["no_such_module", "json", "no.such", "..", ""])
def test_a_module_that_cant_be_run_is_one_error(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-m", name]) == 1
    assert f"there is no module {name!r} that can be run" in capsys.readouterr().err


ABSURD = {
    "an empty TARGET": [""],
    "found size=99999999": [".", "--size", "99999999"],
    "found size=0": [".", "--size", "0"],
    "num-workers must be at least 0, found -1": [".", "--num-workers", "-1"],
}


@pytest.mark.parametrize("words", ABSURD)
@pytest.mark.parametrize("command", ["check", "explain"])
def test_arguments_that_make_no_sense_are_one_error(command: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, *ABSURD[words]]) == 1
    error = capsys.readouterr().err.strip()
    assert words in error
    assert len(error.splitlines()) == 1
