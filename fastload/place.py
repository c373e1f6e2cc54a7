"""A place in an epoch as JSON: saved after the last batch handed out, checked when it is loaded again.

Virtual workers are kept as the number of 32-bit words each has consumed since its seed, so sixteen workers cost no more than
one; indices are not kept but drawn again from the generators that chose them, and compared by a checksum.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

from fastload.errors import StateError
from fastload.generators import Generators, decode_state, encode_state
from fastload.loader import Attached, Loaded, Order, Progress, Resume

__all__ = ["load", "save"]

VERSION = 1


def save(dl: Any, attached: Attached) -> dict[str, Any]:
    """The state of a loader as JSON values."""
    progress, now = attached.progress, Generators.now(cuda=True)
    inside = progress.done > 0 and not progress.ended
    order = attached.order if inside and attached.order is not None else Order(dl.rng.getstate(), now)
    return {
        "fastload_state": VERSION,
        "loader": _identity(dl),
        "rng": encode_state(order.rng),
        "order": order.generators.to_json(),
        "epoch": _epoch(progress, progress.seed_state, now) if inside and progress.seed_state is not None else None,
    }


def load(dl: Any, state: Any) -> Loaded:
    """Check and decode a state; raises StateError if it is none, or another loader's."""
    if not isinstance(state, dict) or state.get("fastload_state") != VERSION:
        found = state.get("fastload_state") if isinstance(state, dict) else type(state).__name__
        raise StateError(f"expected a loader state of version {VERSION} from state_dict(), found {found!r}")
    if state["loader"] != _identity(dl):
        raise StateError(f"the state was saved by a loader with {state['loader']}, this one has {_identity(dl)}")
    order = Order(decode_state(state["rng"]), Generators.from_json(state["order"]))
    return Loaded(order, None if state["epoch"] is None else _resume(state["epoch"]))


def _identity(dl: Any) -> dict[str, Any]:
    return {"n": dl.n, "bs": dl.bs, "num_workers": dl.fake_l.num_workers, "drop_last": bool(dl.drop_last)}


def _epoch(progress: Progress, seed_state: bytes, now: Generators) -> dict[str, Any]:
    return {
        "done": progress.done,
        "samples": progress.samples,
        "words": progress.drawer.words() if progress.drawer is not None else None,
        "seed_state": base64.b85encode(zlib.compress(seed_state, 9)).decode(),
        "indices": progress.indices,
        "generators": now.to_json(),
    }


def _resume(saved: dict[str, Any]) -> Resume:
    seed_state = zlib.decompress(base64.b85decode(saved["seed_state"]))
    generators = Generators.from_json(saved["generators"])
    return Resume(saved["done"], saved["samples"], saved["words"], seed_state, saved["indices"], generators)
