"""A place in an epoch as JSON: saved after the last batch handed out, checked when it is loaded again.

Virtual workers are kept as the number of 32-bit words each has consumed since its seed, so sixteen workers cost no more than
one; indices are not kept but drawn again from the generators that chose them, and compared by a checksum.
"""

from __future__ import annotations

import base64
import re
import zlib
from typing import Any

from fastload.attached import Attached, Loaded, Order, Progress, Resume
from fastload.bridge import Compiled, compile_outside
from fastload.errors import StateError
from fastload.feeding import versions_of
from fastload.generators import Generators, decode_state, encode_state

__all__ = ["load", "save"]

VERSION = 1
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # in the text of an object without one of its own: other in each process


def save(dl: Any, attached: Attached) -> dict[str, Any]:
    """The state of a loader as JSON values."""
    progress, now = attached.progress, Generators.now(cuda=True)
    inside = progress.done > 0 and not progress.ended
    order = attached.order if inside and attached.order is not None else Order(dl.rng.getstate(), now)
    return {
        "fastload_state": VERSION,
        "loader": _identity(dl, attached),
        "rng": encode_state(order.rng),
        "order": order.generators.to_json(),
        "epoch": _epoch(dl, progress, progress.seed_state, now) if inside and progress.seed_state is not None else None,
    }


def load(dl: Any, attached: Attached, state: Any) -> Loaded:
    """Check and decode a state; raises StateError if it is none, or another loader's."""
    if not isinstance(state, dict) or state.get("fastload_state") != VERSION:
        found = state.get("fastload_state") if isinstance(state, dict) else type(state).__name__
        raise StateError(f"expected a loader state of version {VERSION} from state_dict(), found {found!r}")
    if state.get("loader") != (mine := _identity(dl, attached)):
        raise StateError(f"the state was saved by another loader: {_unlike(state.get('loader'), mine)}")
    try:
        order = Order(decode_state(state["rng"]), Generators.from_json(state["order"]))
        resume = None if state["epoch"] is None else _resume(state["epoch"])
        if resume is not None and dl.n is not None and max(resume.done, resume.samples) > dl.n:
            raise ValueError(f"{resume.done} batches of {resume.samples} items were done, and there are {dl.n} items")
        return Loaded(order, resume)
    except (KeyError, ValueError, TypeError, zlib.error) as err:
        raise StateError(f"the state is damaged ({type(err).__name__}: {err}); use one that state_dict() gave") from err


def _identity(dl: Any, attached: Attached) -> dict[str, Any]:
    """What must be the same for the batches to be: counts, the items, and what happens to their images."""
    plan = _plan(dl, attached)
    bounds = {"n": dl.n, "bs": dl.bs, "num_workers": dl.fake_l.num_workers, "drop_last": bool(dl.drop_last)}
    return {**bounds, "items": _items(dl.dataset), "plan": plan}


_MEANING = {
    "n": "the number of items",
    "bs": "the batch size",
    "items": "the items (their full paths)",
    "plan": "the item pipeline",
}


def _unlike(theirs: Any, mine: dict[str, Any]) -> str:
    """What differs between two identities, in words; checksums are not shown."""
    if not isinstance(theirs, dict):
        return f"it holds {type(theirs).__name__} in place of a description"
    said = []
    for key, value in mine.items():
        if theirs.get(key) != value:
            values = "" if key in ("items", "plan") else f" ({theirs.get(key)} there, {value} here)"
            said.append(f"{_MEANING.get(key, key)} differ{'s' if key != 'items' else ''}{values}")
    return "; ".join(said) or f"it describes more than this version knows: {', '.join(sorted(set(theirs) - set(mine)))}"


def _plan(dl: Any, attached: Attached) -> str:
    compiled = compile_outside(dl)
    drawn = "" if not isinstance(compiled, Compiled) else versions_of(attached.settings.cache, compiled.split_idx)
    return compiled.plan.fingerprint()[:16] + drawn if isinstance(compiled, Compiled) else "stock"


def _items(dataset: Any) -> str:
    """Checksum of the items; paths below different folders differ, so a moved data set is another one."""
    items = getattr(dataset, "items", None)
    text = repr(list(map(str, items)) if isinstance(items, list) else items)
    return f"{zlib.crc32(_ADDRESS.sub('', text).encode(errors='replace')):08x}"


def _epoch(dl: Any, progress: Progress, seed_state: bytes, now: Generators) -> dict[str, Any]:
    return {
        "done": progress.done,
        "samples": progress.samples,
        "words": progress.drawer.words() if progress.drawer is not None else None,
        "seed_state": base64.b85encode(zlib.compress(seed_state, 9)).decode(),
        "indices": progress.digest(),
        "generators": now.to_json(),
        "rng": encode_state(dl.rng.getstate()),  # one_batch in between has moved it on
    }


def _resume(saved: dict[str, Any]) -> Resume:
    seed_state = zlib.decompress(base64.b85decode(saved["seed_state"]))
    generators = Generators.from_json(saved["generators"])
    done, samples, words = (saved[key] for key in ("done", "samples", "words"))
    for number in (done, samples, *(words or ())):
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ValueError(f"done, samples and words are counts, found {number!r}")
    return Resume(done, samples, words, seed_state, saved["indices"], generators, decode_state(saved["rng"]))
