"""`fastload.checking.check(dls)`: every file of every loader opened before training, and what stock fastai would do with it.

Files are decoded in as many threads as this process has CPUs, each once, and dropped at once: memory holds one image per
thread. The calling thread alone runs the loaders' own getters and gathers what the threads found.
"""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from fastload.errors import DataError, FastloadError
from fastload.inspecting import SEVERITIES, Finding, Seen, Use, found, inspect
from fastload.listing import Listing, list_files
from fastload.loader import inner_loader
from fastload.machine import usable_cpus
from fastload.recipes import Target, open_target
from fastload.report import Section

__all__ = ["CheckReport", "Finding", "check", "shown"]

Progress = Callable[[int, int], None]

_LISTED = 20  # files or classes that the text names per kind
_UNBALANCED = 10  # times as many items in the largest class as in the smallest
_AHEAD = 4  # files handed to the pool per thread, so that it never waits for the calling thread


@dataclass(frozen=True)
class CheckReport:
    """What was found: findings (broken first), items per class of each split, number of distinct files, time in seconds.

    `str()` is for people and lists at most 20 files per kind; `to_json()` has everything.
    """

    findings: tuple[Finding, ...]
    classes: Mapping[str, Mapping[str, int]]
    files: int
    seconds: float
    notes: tuple[str, ...] = field(default=())

    @property
    def broken(self) -> tuple[Finding, ...]:
        """The findings where stock fastai would raise."""
        return tuple(f for f in self.findings if f.severity == "broken")

    def __str__(self) -> str:
        groups: dict[tuple[str, str], list[Finding]] = {}
        for finding in self.findings:
            groups.setdefault((finding.severity, finding.kind), []).append(finding)
        sections = [_section(*key, group) for key, group in groups.items()]
        parts = [*map(str, sections), *(str(s) for s in _class_section(self.classes)), *map(shown, self.notes)]
        return "\n\n".join([*parts, self._summary()])

    __repr__ = __str__

    def _summary(self) -> str:
        told = ", ".join(f"{count} {severity}" for severity, count in self._counts().items() if count) or "nothing found"
        return f"{self.files} files opened in {self.seconds:.1f} s: {told}"

    def _counts(self) -> dict[str, int]:
        found = Counter(f.severity for f in self.findings)
        return {severity: found[severity] for severity in SEVERITIES}

    def to_json(self) -> str:
        """A JSON object of every field. Path bytes that are not UTF-8 are lone surrogates, as `os.fsdecode` gives them."""
        return json.dumps({**asdict(self), "counts": self._counts()}, indent=2)


def check(dls_or_target: Any, progress: Progress | None = None) -> CheckReport:
    """Open every file of a DataLoaders, a loader, a Learner, a Target, or a folder's path, in the modes in which stock would.

    `progress(done, files)` is called in the calling thread, first with done=0. An unreadable file is a finding, never an error.
    Raises DataError where there are no fastai loaders to check, and where making them fails.
    """
    loaders, start = _loaders(_opened(dls_or_target)), time.perf_counter()
    listings = [list_files(dl, split) for split, dl in zip(_splits(), loaders, strict=False)]
    files = _merged(listings)
    seen = dict(zip(files, _inspected(files, progress or (lambda done, total: None)), strict=True))
    findings = [
        *(finding for listing in listings for finding in listing.findings),
        *(finding for one in seen.values() for finding in one.findings),
        *_same_content(files, seen),
        *_gray(files, seen),
        *_class_findings(listings),
        *_empty_folders(files),
    ]
    findings.sort(key=lambda f: (SEVERITIES.index(f.severity), f.kind, f.path or ""))
    classes = {listing.split: listing.classes for listing in listings}
    notes = tuple(note for listing in listings for note in listing.notes)
    return CheckReport(tuple(findings), classes, len(files), time.perf_counter() - start, notes)


# What to check.


def _opened(target: Any) -> Any:
    """A Target's loaders, made by stock; loaders as they are."""
    if isinstance(target, str | os.PathLike):
        target = Target(os.fsdecode(target))
    if not isinstance(target, Target):
        return target
    try:
        with _first_item_forgiven():
            return open_target(target)
    except FastloadError:
        raise
    except Exception as err:
        text = " ".join(str(err).split())
        raise DataError(f"the loaders of {target.where!r} can't be made: {type(err).__name__}: {text}") from err


@contextmanager
def _first_item_forgiven() -> Iterator[None]:
    """Give a black square for an unreadable image while loaders are made, in this thread only.

    fastai opens the first training item to learn its type. If that file is broken no loader could be made, and so no other
    file be checked. Nothing is hidden: the same file is opened again by the check.
    """
    from fastai.vision import core
    from PIL import Image

    with _FORGIVING:  # one at a time: two that put each other back would leave one in place
        yield from _forgiven(core, Image)


_FORGIVING = threading.Lock()


def _forgiven(core: Any, image: Any) -> Iterator[None]:
    stock, owner = core.load_image, threading.get_ident()

    def load_image(fn: Any, mode: str | None = None) -> Any:
        if threading.get_ident() != owner:
            return stock(fn, mode)
        try:
            if isinstance(fn, str | os.PathLike) and not os.path.isfile(fn):
                raise FileNotFoundError(fn)  # a pipe would be waited for
            return stock(fn, mode)
        except Exception:  # noqa: BLE001  # decoders raise anything
            return image.new(mode or "RGB", (64, 64))

    core.load_image = load_image
    try:
        yield
    finally:
        if core.load_image is load_image:
            core.load_image = stock


def _loaders(target: Any) -> list[Any]:
    dls = getattr(target, "dls", target)
    loaders = list(dls.loaders) if isinstance(getattr(dls, "loaders", None), list) else [dls]
    for dl in loaders:
        if not hasattr(inner_loader(dl), "fake_l"):
            raise DataError(f"expected fastai loaders, a Learner, a folder or file.py:function, found {type(target).__name__}")
    return loaders


def _splits() -> Iterator[str]:
    yield from ("train", "valid")
    yield from (f"loader {k}" for k in range(2, 1000))


def _merged(listings: Iterable[Listing]) -> dict[str, tuple[Use, ...]]:
    """Every path once, by loader and then by name, with the distinct ways in which it is used."""
    uses: dict[str, dict[Use, None]] = {}
    for listing in listings:
        for path, use in sorted(listing.files, key=lambda file: file[0]):
            uses.setdefault(path, {})[use] = None
    return {path: tuple(distinct) for path, distinct in uses.items()}


def _inspected(files: Mapping[str, tuple[Use, ...]], progress: Progress) -> Iterator[Seen]:
    """What came of each file, in order. Warnings are kept quiet meanwhile: what they would tell is among the findings."""
    threads, waiting = usable_cpus().count, deque[Future[Seen]]()
    with warnings.catch_warnings(), ThreadPoolExecutor(threads, "fastload-check") as pool:
        warnings.simplefilter("ignore")
        todo = iter(files.items())
        progress(0, len(files))
        try:
            for done in range(1, len(files) + 1):
                while len(waiting) < _AHEAD * threads and (job := next(todo, None)) is not None:
                    waiting.append(pool.submit(inspect, *job))
                one = waiting.popleft().result()
                progress(done, len(files))
                yield one
        finally:
            for future in waiting:
                future.cancel()


# What only shows between files.


def _same_content(files: Mapping[str, tuple[Use, ...]], seen: Mapping[str, Seen]) -> Iterator[Finding]:
    """Images, not masks, whose bytes are those of one listed before."""
    first: dict[bytes, tuple[str, Use]] = {}
    for path, uses in files.items():
        digest = seen[path].digest
        for use in uses:
            if digest is not None and not use.mask:
                yield from _compared(*first.setdefault(digest, (path, use)), path, use)


def _compared(path: str, use: Use, again: str, other: Use) -> Iterator[Finding]:
    what = "the same file as" if path == again else "the same bytes as"
    what = f"{what} {shown(path)} in {use.split}" + ("" if use.label is None else f" with label {shown(use.label)}")
    if other.split != use.split:
        yield found(("leak", "suspicious", what, "validates on an image that it trains on"), again, (other,))
    if other.label != use.label and None not in (use.label, other.label):
        yield found(("label conflict", "suspicious", what, "trains or validates one image under two labels"), again, (other,))
    if other.split == use.split and other.label == use.label and path != again:
        yield found(("duplicate", "suspicious", what, "counts it as another image"), again, (other,))


def _gray(files: Mapping[str, tuple[Use, ...]], seen: Mapping[str, Seen]) -> Iterator[Finding]:
    """Gray images where others are in colour."""
    images = [p for p, uses in files.items() if seen[p].digest is not None and any(use.colour for use in uses)]
    if all(seen[path].gray for path in images):
        return
    for path in images:
        if seen[path].gray:
            fault = ("gray", "info", "gray, among images in colour", "repeats the one channel three times")
            yield found(fault, path, files[path])


def _class_findings(listings: Sequence[Listing]) -> Iterator[Finding]:
    train, *others = listings
    if train.classes:
        yield from _sizes(train)
    for other in others:
        if train.classes and other.classes:
            yield from _one_sided(train, other)


def _sizes(train: Listing) -> Iterator[Finding]:
    (small, few), (large, many) = (pick(train.classes.items(), key=lambda kv: kv[1]) for pick in (min, max))
    use = (Use(train.split),)
    if many > _UNBALANCED * few:
        what = f"{shown(large)} has {many} items, {shown(small)} has {few}: {many / few:.0f} times fewer"
        yield found(("unbalanced classes", "suspicious", what, "draws each item equally often"), None, use)
    for name in (name for name, count in train.classes.items() if count < 2):
        fault = ("class of one item", "suspicious", f"{shown(name)} has one item", "learns the class from one image")
        yield found(fault, None, (Use(train.split, name),))


def _one_sided(train: Listing, other: Listing) -> Iterator[Finding]:
    for name in sorted(set(train.classes) - set(other.classes)):
        what = f"{shown(name)} has {train.classes[name]} items to train and none in {other.split}"
        yield found((f"class only in {train.split}", "suspicious", what, "never validates it"), None, (Use(train.split, name),))
    for name in sorted(set(other.classes) - set(train.classes)):
        what = f"{shown(name)} has {other.classes[name]} items in {other.split} and none to train"
        raises = name in other.unknown
        does = (
            "raises KeyError when the item is reached, and the epoch ends there" if raises else "validates what it never trains"
        )
        fault = (f"class only in {other.split}", "broken" if raises else "suspicious", what, does)
        yield found(fault, other.unknown.get(name), (Use(other.split, name),))


def _empty_folders(files: Mapping[str, tuple[Use, ...]]) -> Iterator[Finding]:
    """Folders beside the class folders that hold no listed image, where classes are named after folders."""
    homes = {path: os.path.dirname(path) for path in files}
    classes = {homes[path] for path, uses in files.items() if any(use.label == os.path.basename(homes[path]) for use in uses)}
    holding, above = _with_parents(homes.values()), _with_parents(map(os.path.dirname, classes))
    # What holds class folders is not itself beside them: images that lie loose there say nothing of its neighbours.
    for root in sorted(set(map(os.path.dirname, classes - above))):
        for folder in sorted(set(_folders(root)) - holding):
            full = any(names for _, _, names in os.walk(folder))
            severity, what = ("info", "no image in it that is listed") if full else ("suspicious", "an empty folder")
            yield found(("empty folder", severity, what, "knows no such class"), folder, ())


def _with_parents(folders: Iterable[str]) -> set[str]:
    known: set[str] = set()
    for folder in folders:
        while folder not in known:
            known.add(folder)
            folder = os.path.dirname(folder)
    return known


def _folders(root: str) -> list[str]:
    """The folders in `root` that fastai would go into."""
    try:
        with os.scandir(root or os.curdir) as entries:
            return sorted(os.path.join(root, e.name) for e in entries if e.is_dir() and not e.name.startswith("."))
    except OSError:
        return []  # the files below it are findings already


# In words.


def shown(text: str) -> str:
    """Text that is safe to print: as it is, or escaped where it holds line breaks, control characters or undecodable bytes.

    >>> print(shown("cat/1.jpg"), shown("new\\nline.jpg"))
    cat/1.jpg 'new\\nline.jpg'
    """
    return text if text.isprintable() else repr(text)


def _section(severity: str, kind: str, group: Sequence[Finding]) -> Section:
    rows = [(f.path or "", f.split or "", f.label or "", f.what) for f in group[:_LISTED]]
    columns = [column for column in zip(*rows, strict=True) if any(column)]
    lines = [f"stock fastai {does}" for does in dict.fromkeys(f.stock_does for f in group)]
    title = f"{severity}: {kind} ({len(group)})"
    cells = tuple(tuple(map(shown, row)) for row in zip(*columns, strict=True))
    return Section(title, cells, (*_more(len(group)), *lines))


def _class_section(classes: Mapping[str, Mapping[str, int]]) -> Iterator[Section]:
    names = sorted({name for counts in classes.values() for name in counts})
    if names:
        rows = [(shown(name), *(str(counts.get(name, 0)) for counts in classes.values())) for name in names[:_LISTED]]
        yield Section(f"classes ({len(names)})", (("", *classes), *rows), tuple(_more(len(names))))


def _more(count: int) -> Iterator[str]:
    if count > _LISTED:
        yield f"... and {count - _LISTED} more (use --json for all)"
