"""A fastai loader class with fastload in it: made on the fly from the loader's own class, gone again when pickled.

`accelerated(TfmdDL)` is a subclass that adds private state, `state_dict`, and keywords; whatever else the class does
(WeightedDL's indices, a user's own loader) is untouched. Pickles hold the stock class: an exported learner needs no fastload.
"""

from __future__ import annotations

import copy
import copyreg
import weakref
from typing import Any

from fastload import place
from fastload.attached import Attached, Order, Progress
from fastload.errors import StateError
from fastload.generators import Generators
from fastload.intercept import install
from fastload.machine import switched_off
from fastload.settings import Settings, split_keywords, warn_unknown

__all__ = ["accelerated", "attach", "stock_class"]


def accelerated(cls: type) -> type:
    """The accelerated twin of a fastai loader class; the same one each time."""
    if issubclass(cls, Accelerated):
        return cls
    twin = _TWINS.get(cls)
    if twin is None:
        twin = _TWINS[cls] = _twin(cls)
    return twin


def _twin(cls: type) -> type:
    return type(f"Accelerated{cls.__name__}", (Accelerated, cls), {"__doc__": cls.__doc__, "__module__": __name__})


def attach(dl: Any, settings: Settings) -> Any:
    """Turn a live loader into its accelerated twin, in place."""
    install()
    if not isinstance(dl, Accelerated):
        dl.__class__ = accelerated(type(dl))
    dl.__dict__["_fl"] = Attached(settings)
    return dl


def stock_class(cls: type) -> type:
    """fastai's class behind an accelerated one: what a pickle names."""
    line = cls.__mro__
    return next(base for base in line[line.index(Accelerated) + 1 :] if base is not object)


_TWINS: weakref.WeakKeyDictionary[type, type] = weakref.WeakKeyDictionary()


class Accelerated:
    """Mixin of every accelerated class; all that it keeps is `_fl`, so it shadows no name of the data set but the two below."""

    rng: Any  # fastai's

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        install()
        ours, rest = split_keywords(kwargs)
        inherited = rest.pop("_fl", None)
        self.__dict__["_fl"] = Attached(Settings().updated(ours)) if inherited is None else inherited.child(ours)
        warn_unknown(rest, stock_class(type(self)), self.__dict__["_fl"].told)
        super().__init__(*args, **rest)

    def _fastload_of(self) -> Attached:
        return self.__dict__.setdefault("_fl", Attached())  # type: ignore[no-any-return]

    def new(self, dataset: Any = None, cls: Any = None, **kwargs: Any) -> Any:
        """fastai's `new`; the settings of this loader go along."""
        target = type(self) if cls is None else cls
        extra = {"_fl": self._fastload_of()} if issubclass(target, Accelerated) else {}
        return super().new(dataset, cls, **kwargs, **extra)  # type: ignore[misc]  # the fastai class comes next

    def one_batch(self) -> Any:
        """fastai's `one_batch`, reading nothing beyond the one batch."""
        attached = self._fastload_of()
        before, attached.single = attached.single, True
        try:
            return super().one_batch()  # type: ignore[misc]
        finally:
            attached.single = before

    def randomize(self) -> None:
        """fastai's `randomize`; takes up a loaded state, and remembers the generators that choose this epoch's indices."""
        attached = self._fastload_of()
        if attached.single:
            super().randomize()  # type: ignore[misc]
            return
        if (loaded := attached.loaded) is not None:
            attached.loaded = None
            self.rng.setstate(loaded.order.rng)
            loaded.order.generators.restore()
            attached.progress = Progress(resume=loaded.resume)
        attached.order = Order(self.rng.getstate(), Generators.now())
        super().randomize()  # type: ignore[misc]

    def state_dict(self) -> dict[str, Any]:
        """The place after the last batch handed out by the newest iterator, with every generator state that the rest needs.

        JSON values, at most 64 kB. Before the first epoch, or after the end of one, it is the place before the next epoch.
        `one_batch` and `show_batch` in between leave that place alone, and draw random numbers as in stock. Call it after a
        step, where a checkpoint is written: `load_state_dict` then gives the very batches that would follow.
        """
        _refuse_off("state_dict")
        return place.save(self, self._fastload_of())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iterator go on where `state_dict()` was called; raises StateError if it is not this loader's state."""
        _refuse_off("load_state_dict")
        self._fastload_of().loaded = place.load(self, self._fastload_of(), state)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as the stock class, without anything of fastload's."""
        made = super().__reduce_ex__(max(2, int(protocol)))
        state = {k: v for k, v in self.__dict__.items() if k != "_fl"}
        # not copyreg.__newobj__: pickle refuses that where the class it is given is not the object's own
        return (copyreg._reconstructor, (stock_class(type(self)), object, None), state, *made[3:])  # type: ignore[attr-defined]

    def __copy__(self) -> Any:
        return self._twin(dict(self.__dict__))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        twin = memo[id(self)] = self._twin({})
        twin.__dict__.update({k: copy.deepcopy(v, memo) for k, v in self.__dict__.items() if k != "_fl"})
        return twin

    def _twin(self, state: dict[str, Any]) -> Any:
        twin = type(self).__new__(type(self))
        twin.__dict__.update(state, _fl=self._fastload_of().child({}))
        return twin


def _refuse_off(call: str) -> None:
    if switched_off():
        raise StateError(f"{call}() needs fastload, and FASTLOAD=off is set; unset it")
