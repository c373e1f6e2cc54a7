"""The global random number generators that user code and fastai draw from: kept, compared, put back, saved as JSON."""

from __future__ import annotations

import base64
import random
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

__all__ = ["Generators", "base_seed", "decode_state", "encode_state", "preserved"]

_LOCK = threading.Lock()  # worker_init_fn of several threads must not see each other's generators


@dataclass(frozen=True)
class Generators:
    """States of Python's, numpy's and torch's global generators (CUDA's only where `now(cuda=True)` found devices)."""

    python: Any
    numpy: Any
    torch: bytes
    cuda: tuple[bytes, ...] = ()

    @classmethod
    def now(cls, cuda: bool = False) -> Generators:
        """The states as they are."""
        numpy_state: Any = np.random.get_state(legacy=True)
        name, keys, pos, has_gauss, gauss = numpy_state
        states = torch.cuda.get_rng_state_all() if cuda and torch.cuda.is_available() else []
        numpy = (name, keys.tobytes(), pos, has_gauss, gauss)
        return cls(random.getstate(), numpy, _bytes(torch.get_rng_state()), tuple(map(_bytes, states)))

    def restore(self) -> None:
        """Put the states back."""
        random.setstate(self.python)
        name, keys, *rest = self.numpy
        np.random.set_state((name, np.frombuffer(keys, np.uint32), *rest))
        torch.set_rng_state(_tensor(self.torch))
        for device, state in enumerate(self.cuda[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(_tensor(state), device)

    def to_json(self) -> dict[str, Any]:
        """As JSON values of about 10 kB."""
        name, keys, pos, has_gauss, gauss = self.numpy
        return {
            "python": encode_state(self.python),
            "numpy": [name, _text(keys), pos, has_gauss, gauss],
            "torch": _text(self.torch),
            "cuda": [_text(state) for state in self.cuda],
        }

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> Generators:
        """The inverse of `to_json`."""
        name, keys, pos, has_gauss, gauss = saved["numpy"]
        numpy = (name, _raw(keys), pos, has_gauss, gauss)
        return cls(decode_state(saved["python"]), numpy, _raw(saved["torch"]), tuple(map(_raw, saved["cuda"])))


def encode_state(state: Any) -> list[Any]:
    """A `random.Random.getstate()` as JSON values.

    >>> state = random.Random(3).getstate()
    >>> decode_state(encode_state(state)) == state
    True
    """
    version, words, gauss = state
    return [version, _text(np.array(words[:-1], np.uint32).tobytes()), words[-1], gauss]


def decode_state(saved: list[Any]) -> Any:
    """The inverse of `encode_state`."""
    version, words, position, gauss = saved
    return version, (*np.frombuffer(_raw(words), np.uint32).tolist(), position), gauss


def base_seed(state: bytes | None = None) -> int:
    """The seed that torch's iterator draws as it starts: from the global generator, or from one in `state`."""
    generator = None
    if state is not None:
        generator = seeded(state)
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


def seeded(state: bytes) -> torch.Generator:
    """A CPU generator in `state`."""
    generator = torch.Generator()
    generator.set_state(_tensor(state))
    return generator


def cpu_state() -> bytes:
    """State of torch's global CPU generator."""
    return _bytes(torch.get_rng_state())


@contextmanager
def preserved() -> Iterator[None]:
    """Put the global generators back afterwards; one thread at a time."""
    with _LOCK:
        before = Generators.now()
        try:
            yield
        finally:
            before.restore()


def _bytes(state: torch.Tensor) -> bytes:
    return state.numpy().tobytes()


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


def _text(raw: bytes) -> str:
    return base64.b85encode(zlib.compress(raw, 9)).decode()


def _raw(text: str) -> bytes:
    return zlib.decompress(base64.b85decode(text))
