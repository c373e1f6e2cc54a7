"""A cache is built the same however it was built, whatever kills it; damage is found and repaired."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from caches import KINDS, blueprint, built, content, everything, finish, opened, shards
from pictures import Pictures, make_pictures
from PIL import Image

from fastload import cache as room
from fastload.cache._format import checked_json, read_json
from fastload.cache.read import CacheSource
from fastload.cache.repair import repair
from fastload.cache.verify import verify
from fastload.errors import CacheError
from fastload.source import Files, Ref


@pytest.fixture
def made(tmp_path: Path) -> Pictures:
    return make_pictures(tmp_path / "data")


@pytest.mark.parametrize("kind", [*KINDS, "variants"])
def test_builds_are_equal_byte_for_byte(made: Pictures, tmp_path: Path, kind: str) -> None:
    plan = blueprint(made, kind)
    assert finish(plan, made.images, tmp_path / "one", threads=1)
    assert not finish(plan, made.images, tmp_path / "shared", share=(1, 2), threads=3)
    assert not (tmp_path / "shared" / "manifest.json").exists()
    assert finish(plan, made.images, tmp_path / "shared", share=(0, 2))
    assert finish(plan, made.images, tmp_path / "shared", share=(2, 3))
    assert content(tmp_path / "one") == content(tmp_path / "shared")


KILLED = """
import os, signal, sys, random
from pathlib import Path
from caches import blueprint, finish
from pictures import Pictures
from fastload.cache import build as room, _format, generations
dice = random.Random(int(sys.argv[3]))
def maybe(name, real):
    def call(*args, **how):
        if dice.random() < float(sys.argv[5]):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **how)
    return call
rooms = {room: ("_write", "_put", "_located", "_commit", "kept", "_finish")}
rooms[_format] = ("write_index", "write_bytes", "sync_folder")
rooms[generations] = ("read_generation", "numbered")
for module, names in rooms.items():
    for name in names:
        setattr(module, name, maybe(name, getattr(module, name)))
for name in ("replace", "link", "fsync"):
    setattr(os, name, maybe(name, getattr(os, name)))
made = Pictures(Path(sys.argv[1]))
print(finish(blueprint(made, sys.argv[4]), made.images, Path(sys.argv[2]), threads=2))
"""


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("source", 6),
        ("variants", 6),
        *(pytest.param(k, 30, marks=pytest.mark.slow) for k in (*KINDS, "variants")),
    ],
)
def test_a_build_that_is_killed_goes_on_and_ends_the_same(made: Pictures, tmp_path: Path, kind: str, kills: int) -> None:
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    assert finish(blueprint(made, kind), made.images, whole)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    died, committed = 0, set[str]()
    for seed in range(20 * kills):
        command = [sys.executable, "-W", "ignore", "-c", KILLED, str(made.path), str(torn), str(seed), kind, "0.12"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100, check=False)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        died += done.returncode != 0
        now = {p.name for p in torn.glob("parts/*/commits/*.json")} if torn.exists() else set()
        assert committed <= now  # nothing committed is lost
        committed = now
        if done.returncode == 0:
            assert content(whole) == {k: v for k, v in content(torn).items() if not k.endswith(".tmp")}, seed
            if died >= kills:
                return
            for path in sorted(torn.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            committed = set()
    pytest.fail(f"only {died} attempts were killed")


@pytest.mark.parametrize("host", ["here", "node-1.cluster.example"])
def test_files_of_dead_builders_of_this_host_are_removed(
    made: Pictures, tmp_path: Path, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    tmp = tmp_path / "cache" / "parts" / blueprint(made, "source").name / "tmp"
    tmp.mkdir(parents=True)
    names = [
        f"00001-{host}-{dead.pid}.lmdb",
        f"00001-{host}-{dead.pid}.lmdb-lock",
        "00001-elsewhere-1.lmdb",
        f"00002-{host}-1.idx",
    ]
    for name in names:
        (tmp / name).write_bytes(b"half")
    built(made, tmp_path / "cache", "source")
    assert sorted(p.name for p in tmp.iterdir()) == sorted(names[2:])  # process 1 is alive


def test_two_builders_at_once_make_one_cache(made: Pictures, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-W", "ignore", "-c", KILLED, str(made.path), str(tmp_path / "both"), "0", "decoded", "0"]
    builders = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [b.communicate(timeout=100)[0].strip() for b in builders] == ["True"] * 3
    assert [b.returncode for b in builders] == [0, 0, 0]
    assert finish(blueprint(made, "decoded"), made.images, tmp_path / "one")
    assert content(tmp_path / "one") == content(tmp_path / "both")


@pytest.mark.parametrize("kind", [*KINDS, "variants"])
def test_any_damage_is_noticed(made: Pictures, tmp_path: Path, kind: str) -> None:
    rng = random.Random(3)
    out = tmp_path / "cache"
    built(made, out, kind)
    wanted = everything(out, made)
    noticed = harmless = 0
    for path in [p for p in sorted(out.rglob("*")) if p.is_file() and p.name not in ("lock", "plan.json")]:
        data = path.read_bytes()
        for how in ("flip", "flip", "flip", "cut", "empty", "gone"):
            damaged = bytearray(data)
            at = rng.randrange(len(data))
            if how == "flip":
                damaged[at] ^= 1 << rng.randrange(8)
            path.write_bytes(damaged if how == "flip" else data[:at] if how == "cut" else b"")
            if how == "gone":
                path.unlink()
            try:
                assert everything(out, made) == wanted  # a bit that no reader looks at
                harmless += 1
            except CacheError as err:
                assert str(out) in str(err)
                noticed += 1
            path.write_bytes(data)
    assert noticed > harmless  # commit records and the numbered manifest are for builders
    assert everything(out, made) == wanted


@pytest.mark.parametrize("kind", [*KINDS, "variants"])
def test_repair_gives_back_the_same_bytes(made: Pictures, tmp_path: Path, kind: str) -> None:
    rng, out = random.Random(5), tmp_path / "cache"
    built(made, out, kind)
    wanted = content(out)
    for name in wanted:
        if Path(name).name in ("plan.json", "items.jsonl"):
            continue
        for how in ("flip", "cut", "gone"):
            damaged = bytearray(wanted[name])
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            (out / name).write_bytes(damaged if how == "flip" else wanted[name][:7])
            if how == "gone":
                (out / name).unlink()
            heard: list[str] = []
            rebuilt = repair(out, made.images, said=heard.append)
            assert len(rebuilt) == len(heard) == (0 if Path(name).name.startswith("manifest.") else 1)
            assert content(out) == wanted
    assert verify(out) == []


def test_repair_refuses_what_it_can_not_make_equal(made: Pictures, tmp_path: Path) -> None:
    out = tmp_path / "cache"
    built(made, out, "decoded")
    (part,) = (out / "parts").iterdir()
    for commit in (part / "commits").iterdir():
        commit.unlink()
    kept = made.files[0].read_bytes()
    made.files[0].write_bytes(kept + b"more")
    with pytest.raises(CacheError, match="not those that were kept"):
        repair(out, made.images)
    assert list((part / "commits").iterdir()) == []  # as it was before
    (part / "plan.json").write_text("{}")
    with pytest.raises(CacheError, match="build the cache anew"):
        repair(out, made.images)


def test_files_that_can_not_be_kept_are_listed_within_a_budget(made: Pictures, tmp_path: Path) -> None:
    made.files[4].write_bytes(b"no picture")
    plan = blueprint(made, "decoded")
    with pytest.raises(CacheError, match=r"1 items can't be kept.*max_bad"):
        finish(plan, made.images, tmp_path / "cache")
    assert finish(plan, made.images, tmp_path / "cache", max_bad=0.5)
    source = CacheSource(opened(tmp_path / "cache"), made.images)
    name = str(made.files[4].relative_to(made.images))
    assert list(source.held.bad) == [name]
    assert source.size(Ref(4, str(made.files[4]))) is None
    assert source.read(Ref(4, str(made.files[4]))) == Files().read(Ref(4, str(made.files[4])))  # its fault is stock's


def test_a_file_that_changes_while_it_is_read_stops_the_build(made: Pictures, tmp_path: Path) -> None:
    plan = blueprint(made, "source")
    made.files[3].write_bytes(made.files[3].read_bytes() + b"more")
    with pytest.raises(CacheError, match=r"changed while the cache was built \(size"):
        finish(plan, made.images, tmp_path / "cache")


@pytest.mark.parametrize("kind", [*KINDS, "variants"])
def test_the_manifests_are_as_their_schemas_say(made: Pictures, tmp_path: Path, kind: str) -> None:
    kept = built(made, tmp_path / "cache", kind)
    for name, file in (("manifest", tmp_path / "cache" / "manifest.json"), ("part", kept.parts[0].path / "manifest.json")):
        manifest = read_json(file)
        schema = json.loads((Path(room.__file__).parent / f"{name}.schema.json").read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(manifest, schema)
        for spoilt in (
            {**manifest, "format": "fastload-cache/2"},
            {**manifest, "more": 1},
            {k: v for k, v in manifest.items() if k not in ("plan", "parts")},
        ):
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(spoilt, schema)
    assert [s["shard"] for s in checked_json(file)["shards"]] == list(range(len(shards(kept))))


def test_records_far_larger_than_the_first_find_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Pictures(tmp_path / "data")
    (made.images / "a").mkdir(parents=True)
    noise = np.random.default_rng(1).integers(0, 256, (500, 400, 3)).astype(np.uint8)
    for k in range(40):
        Image.fromarray(noise[: 8 if k == 0 else 500]).save(made.images / "a" / f"{k:03d}.png", compress_level=0)
    monkeypatch.setattr("fastload.cache.build._MAP", 1 << 20)  # the map grows, and each transaction is whole
    source = CacheSource(built(made, tmp_path / "cache", "source"), made.images)
    for number, path in enumerate(made.files):
        assert source.read(Ref(number, str(path))).data == path.read_bytes()


def test_a_disk_that_fills_up_stops_the_build_and_it_goes_on(
    made: Pictures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, real, calls = blueprint(made, "decoded"), os.fsync, [0]

    def full(file: int) -> None:
        calls[0] += 1
        if calls[0] == 14:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(file)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CacheError, match=r"No space left on device; free the disk and run this again"):
        finish(plan, made.images, tmp_path / "cache")
    committed = set((tmp_path / "cache").glob("parts/*/commits/*.json"))
    assert committed
    assert list((tmp_path / "cache").glob("parts/*/tmp/*")) == []
    monkeypatch.setattr(os, "fsync", real)
    before = {p: p.stat().st_mtime_ns for p in committed}
    assert finish(plan, made.images, tmp_path / "cache")
    assert before == {p: p.stat().st_mtime_ns for p in committed}  # nothing is done twice
    assert finish(plan, made.images, tmp_path / "other")
    assert content(tmp_path / "cache") == content(tmp_path / "other")


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk has to be mounted")
def test_a_small_disk_ends_in_one_clear_error(made: Pictures, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", str(small)], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(CacheError, match="could not be written .* free the disk and run this again"):
            finish(blueprint(made, "decoded", most=1 << 20), made.images, small / "cache")
        assert not (small / "cache" / "manifest.json").exists()
    finally:
        subprocess.run(["umount", str(small)], check=True)
