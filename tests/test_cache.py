"""A cache holds the files' bytes or Pillow's pixels, the same however it was built, never stale or damaged unnoticed."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from pictures import Pictures, make_pictures
from PIL import Image

from fastload import cache as room
from fastload import pixels
from fastload.cache import _items as what
from fastload.cache._format import read_json
from fastload.cache.build import build
from fastload.cache.read import Cache, CacheSource, open_cache
from fastload.cache.repair import repair
from fastload.cache.verify import verify
from fastload.errors import CacheError, StaleCache
from fastload.source import Files, Ref

SMALL = 9_000  # bytes a shard, so that there are several


def blueprint(made: Pictures, kind: str, mode: str = "RGB", most: int = SMALL) -> what.Blueprint:
    items = what.listed([str(p) for p in made.files], made.images)
    return what.Blueprint(kind, mode, what.fingerprint(kind), what.sharded(items, kind, mode, made.images, most), items)


@pytest.fixture
def made(tmp_path: Path) -> Pictures:
    return make_pictures(tmp_path / "data")


def built(made: Pictures, out: Path, kind: str, **how: Any) -> Cache:
    assert build(blueprint(made, kind), made.images, out, **how)
    return open_cache(out)


def content(out: Path) -> dict[str, bytes]:
    """Every file of a cache by its name."""
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("kind", what.KINDS)
def test_every_file_comes_back(made: Pictures, tmp_path: Path, kind: str) -> None:
    source = CacheSource(built(made, tmp_path / "cache", kind), made.images)
    assert len(source.cache.shards) > 2
    assert len(source) == len(made.files)
    for number, path in enumerate(made.files):
        record, image = source.read(Ref(number, str(path))), Image.open(path)
        assert source.size(Ref(number, str(path))) == image.size
        if kind == "source":
            assert record.data == path.read_bytes()
            assert record.codec == Files().read(Ref(number, str(path))).codec
        else:
            assert record.codec == "raw"
            assert np.array_equal(record.image, np.asarray(image.convert("RGB")))
            assert not record.image.flags.writeable


def test_gray_pixels_have_one_channel(made: Pictures, tmp_path: Path) -> None:
    plan = blueprint(made, "decoded", "L")
    assert build(plan, made.images, tmp_path / "cache")
    source = CacheSource(open_cache(tmp_path / "cache"), made.images)
    for number, path in enumerate(made.files):
        wanted = np.asarray(pixels.load(Files().read(Ref(number, str(path))), "L"))
        assert np.array_equal(source.read(Ref(number, str(path))).image[..., 0], wanted)


@pytest.mark.parametrize("kind", what.KINDS)
def test_builds_are_equal_byte_for_byte(made: Pictures, tmp_path: Path, kind: str) -> None:
    plan = blueprint(made, kind)
    assert build(plan, made.images, tmp_path / "one", threads=1)
    assert not build(plan, made.images, tmp_path / "parts", part=(1, 2), threads=3)
    assert not (tmp_path / "parts" / "manifest.json").exists()
    assert build(plan, made.images, tmp_path / "parts", part=(0, 2))
    assert build(plan, made.images, tmp_path / "parts", part=(2, 3))
    assert content(tmp_path / "one") == content(tmp_path / "parts")


KILLED = """
import os, signal, sys, random
from pathlib import Path
from test_cache import blueprint
from pictures import Pictures
from fastload.cache import build as room, _format
dice = random.Random(int(sys.argv[3]))
def maybe(name, real):
    def call(*args, **how):
        if dice.random() < float(sys.argv[5]):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **how)
    return call
rooms = {room: ("_write", "_located", "_commit", "_kept", "_finish"), _format: ("write_index", "write_bytes", "sync_folder")}
for module, names in rooms.items():
    for name in names:
        setattr(module, name, maybe(name, getattr(module, name)))
for name in ("replace", "link", "fsync"):
    setattr(os, name, maybe(name, getattr(os, name)))
made = Pictures(Path(sys.argv[1]))
print(room.build(blueprint(made, sys.argv[4]), made.images, Path(sys.argv[2]), threads=2))
"""


@pytest.mark.parametrize("kind", what.KINDS)
@pytest.mark.parametrize("kills", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_a_build_that_is_killed_goes_on_and_ends_the_same(made: Pictures, tmp_path: Path, kind: str, kills: int) -> None:
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    assert build(blueprint(made, kind), made.images, whole)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    died, committed = 0, set[str]()
    for seed in range(20 * kills):
        command = [sys.executable, "-W", "ignore", "-c", KILLED, str(made.path), str(torn), str(seed), kind, "0.12"]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100, check=False)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        died += done.returncode != 0
        now = {p.name for p in (torn / "commits").glob("*.json")} if torn.exists() else set()
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
    (tmp_path / "cache" / "tmp").mkdir(parents=True)
    names = [
        f"00001-{host}-{dead.pid}.lmdb",
        f"00001-{host}-{dead.pid}.lmdb-lock",
        "00001-elsewhere-1.lmdb",
        f"00002-{host}-1.idx",
    ]
    for name in names:
        (tmp_path / "cache" / "tmp" / name).write_bytes(b"half")
    built(made, tmp_path / "cache", "source")
    assert sorted(p.name for p in (tmp_path / "cache" / "tmp").iterdir()) == sorted(names[2:])  # process 1 is alive


def test_two_builders_at_once_make_one_cache(made: Pictures, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-W", "ignore", "-c", KILLED, str(made.path), str(tmp_path / "both"), "0", "decoded", "0"]
    builders = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [b.communicate(timeout=100)[0].strip() for b in builders] == ["True"] * 3
    assert [b.returncode for b in builders] == [0, 0, 0]
    assert build(blueprint(made, "decoded"), made.images, tmp_path / "one")
    assert content(tmp_path / "one") == content(tmp_path / "both")


@pytest.mark.parametrize("kind", what.KINDS)
def test_any_damage_is_noticed(made: Pictures, tmp_path: Path, kind: str) -> None:
    rng = random.Random(3)
    out = tmp_path / "cache"
    built(made, out, kind)
    wanted = everything(out, made)
    noticed = harmless = 0
    for path in [p for p in sorted(out.rglob("*")) if p.is_file() and p.parent.name in ("shards", "cache")]:
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
    assert noticed > 3 * harmless
    assert everything(out, made) == wanted


@pytest.mark.parametrize("kind", what.KINDS)
def test_repair_gives_back_the_same_bytes(made: Pictures, tmp_path: Path, kind: str) -> None:
    rng, out = random.Random(5), tmp_path / "cache"
    built(made, out, kind)
    wanted = content(out)
    for name in wanted:
        if name in ("plan.json", "items.jsonl"):
            continue
        for how in ("flip", "cut", "gone"):
            damaged = bytearray(wanted[name])
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            (out / name).write_bytes(damaged if how == "flip" else wanted[name][:7])
            if how == "gone":
                (out / name).unlink()
            heard: list[str] = []
            rebuilt = repair(out, made.images, said=heard.append)
            assert len(rebuilt) == len(heard) == (0 if name == "manifest.json" else 1)
            assert content(out) == wanted
    assert verify(out) == []


def test_repair_refuses_what_it_can_not_make_equal(made: Pictures, tmp_path: Path) -> None:
    out = tmp_path / "cache"
    built(made, out, "decoded")
    for commit in (out / "commits").iterdir():
        commit.unlink()
    kept = made.files[0].read_bytes()
    made.files[0].write_bytes(kept + b"more")
    with pytest.raises(CacheError, match="changed"):
        repair(out, made.images)
    (out / "plan.json").write_text("{}")
    with pytest.raises(CacheError, match="build the cache anew"):
        repair(out, made.images)


def everything(out: Path, made: Pictures) -> list[bytes]:
    """Every record of a cache, opened anew."""
    source = CacheSource(Cache(out), made.images)
    records = [source.read(Ref(k, str(p))) for k, p in enumerate(made.files)]
    return [r.data if r.data is not None else r.image.tobytes() for r in records]


def test_a_crop_needs_only_its_own_rows_whole(tmp_path: Path) -> None:
    made = Pictures(tmp_path / "data")
    (made.images / "a").mkdir(parents=True)
    noise = np.random.default_rng(1).integers(0, 256, (400, 300, 3)).astype(np.uint8)
    Image.fromarray(noise).save(made.images / "a" / "large.png")
    kept = built(made, tmp_path / "cache", "decoded")
    path = kept.shards[0].path
    data = bytearray(path.read_bytes())
    data[int(kept.shards[0].rows["offset"][0]) + 390 * 900] ^= 1
    path.write_bytes(data)
    source, ref = CacheSource(Cache(tmp_path / "cache"), made.images), Ref(0, str(made.files[0]))
    found = source.read(ref, (0, 100, 300, 200)).image
    assert np.array_equal(found[100:200], noise[100:200])
    with pytest.raises(CacheError, match="another checksum"):
        source.read(ref, (0, 200, 300, 400))
    with pytest.raises(CacheError, match="another checksum"):
        source.read(ref)
    assert CacheSource(Cache(tmp_path / "cache"), made.images, "off").read(ref).image.shape == (400, 300, 3)


def test_what_changed_is_stale_and_what_was_touched_is_not(made: Pictures, tmp_path: Path) -> None:
    kept = built(made, tmp_path / "cache", "decoded")
    assert kept.stale(made.images) == []
    os.utime(made.files[0])
    assert kept.stale(made.images) == []
    made.files[1].unlink()
    assert kept.stale(made.images) == []
    Image.new("RGB", (9, 9)).save(made.files[2])
    assert kept.stale(made.images) == [f"{made.files[2]} has other bytes than when it was kept"]
    kept.manifest["plan"]["fingerprint"]["pillow"] = "1.0"
    assert "pillow was '1.0' and is" in kept.stale(made.images)[0]


def test_files_that_can_not_be_kept_are_listed_within_a_budget(made: Pictures, tmp_path: Path) -> None:
    made.files[4].write_bytes(b"no picture")
    plan = blueprint(made, "decoded")
    with pytest.raises(CacheError, match=r"1 items can't be kept.*max_bad"):
        build(plan, made.images, tmp_path / "cache")
    assert build(plan, made.images, tmp_path / "cache", max_bad=0.5)
    source = CacheSource(open_cache(tmp_path / "cache"), made.images)
    name = str(made.files[4].relative_to(made.images))
    assert list(source.cache.bad) == [name]
    with pytest.raises(StaleCache, match="UnidentifiedImageError"):
        source.read(Ref(4, str(made.files[4])))


def test_another_plan_in_the_same_folder_is_an_error(made: Pictures, tmp_path: Path) -> None:
    built(made, tmp_path / "cache", "source")
    with pytest.raises(CacheError, match="was begun with other .*kind"):
        build(blueprint(made, "decoded"), made.images, tmp_path / "cache")


def test_a_file_that_changes_while_it_is_read_stops_the_build(made: Pictures, tmp_path: Path) -> None:
    plan = blueprint(made, "source")
    made.files[3].write_bytes(made.files[3].read_bytes() + b"more")
    with pytest.raises(CacheError, match=r"changed while the cache was built \(size"):
        build(plan, made.images, tmp_path / "cache")


def test_an_unfinished_cache_is_none(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="no finished cache"):
        open_cache(tmp_path)


def test_a_source_may_be_pickled_and_read_in_a_child(made: Pictures, tmp_path: Path) -> None:
    source = CacheSource(built(made, tmp_path / "cache", "decoded"), made.images)
    again = pickle.loads(pickle.dumps(source))
    assert again.cache is source.cache  # one mapping a process
    wanted = source.read(Ref(0, str(made.files[0]))).image
    if (child := os.fork()) == 0:
        os._exit(0 if np.array_equal(source.read(Ref(0, str(made.files[0]))).image, wanted) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_the_manifest_is_as_its_schema_says(made: Pictures, tmp_path: Path) -> None:
    built(made, tmp_path / "cache", "decoded")
    manifest = read_json(tmp_path / "cache" / "manifest.json")
    schema = json.loads((Path(room.__file__).parent / "manifest.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(manifest, schema)
    assert [s["shard"] for s in manifest["shards"]] == list(range(len(manifest["shards"])))
    for spoilt in (
        {**manifest, "format": "fastload-cache/2"},
        {**manifest, "more": 1},
        {k: manifest[k] for k in manifest if k != "plan"},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(spoilt, schema)
