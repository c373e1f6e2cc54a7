"""What runs where, as a query planner would print it: each transform of a loader, its executor, and why."""

from __future__ import annotations

from typing import Any

from fastload import machine, native
from fastload.batch import fused
from fastload.bridge import Compiled, Refused, compile_outside
from fastload.cache.opening import as_cached
from fastload.cache.read import open_cache
from fastload.errors import CacheError
from fastload.executors import Options, automatic, exact_only, executors
from fastload.feeding import vouched_by
from fastload.intercept import attached_to
from fastload.loader import inner_loader
from fastload.ops import Op
from fastload.plan import draws
from fastload.report import Section
from fastload.settings import Settings

__all__ = ["explain_loader"]


def explain_loader(dl: Any, name: str) -> Section:
    """One section for one loader."""
    inner = inner_loader(dl)
    attached = attached_to(inner)
    settings = attached.settings if attached is not None else None
    reasons = _reasons(settings)
    if attached is not None and attached.stays is not None:
        reasons += (f"in the last epoch an item showed that {attached.stays}",)
    cache = None if settings is None else settings.cache
    compiled = compile_outside(inner, vouched_by(cache))
    if isinstance(compiled, Refused):
        reasons += compiled.reasons
    split = getattr(inner.dataset, "split_idx", None)
    data = {"accelerated": not reasons, "reasons": reasons, "split_idx": split, "pillow": pillow()}
    if reasons or isinstance(compiled, Refused):
        kept = () if cache is None else (f"{_cached(cache, inner)}; stock's own opening takes a file's bytes from there",)
        return Section(name, (), ("stock fastai does everything, because:", *(f"- {r}" for r in reasons), *kept), data)
    chosen = settings or Settings()
    rows, lines = _rows(compiled, chosen, inner), _lines(chosen, inner)
    lines = (
        *lines,
        *filter(None, [_executor(compiled, chosen)[1]]),
        *_fused(compiled, chosen, inner),
        *_scaled(compiled, chosen),
    )
    if chosen.channels_last:
        lines = (
            *lines,
            "channels_last=True: equal values in another order in memory; a convolution's last bits change with it",
        )
    data |= {"plan": compiled.plan.fingerprint(), "rows": rows, "settings": lines}
    return Section(name, rows, lines, data)


def _reasons(settings: Settings | None) -> tuple[str, ...]:
    if machine.switched_off():
        return ("FASTLOAD=off is set in the environment",)
    if settings is None:
        return ("it is not accelerated: fastload.accelerate(dls) or `from fastload.vision import *` does that",)
    if settings.executor == "stock":
        return ("executor='stock' was asked for",)
    return ()


def _rows(compiled: Compiled, settings: Settings, inner: Any) -> tuple[tuple[str, ...], ...]:
    plan, where = compiled.plan, f"fastload {_executor(compiled, settings)[0]}"
    name = where.rpartition(" ")[2]
    how = _HOW.get("decoding" if name == "native" and not native.status().resizes else name, "Pillow")
    rows = [("open image, decode", where, f"{'Pillow' if e.mask else how}, mode {e.mode}") for e in plan.elements]
    rows += [(repr(op), where, _how(op)) for op in plan.ops]
    rows.append(("ToTensor, collate", where, "each image straight into its row of the batch"))
    rows += [(chain, "fastai", "labels and targets, main thread") for chain in plan.targets]
    if settings.batch == "fused" and fused.refuses(inner) is None:
        pairs = zip(plan.batch_ops, fused.staying(inner.after_batch.fs), strict=True)
        rows += [_batch_row(op, why) for op, why in pairs]
    else:
        rows += [(name, "fastai", "batch transform, on the loader's device") for name in plan.batch_ops]
    return tuple(rows)


def _batch_row(name: str, why: str | None) -> tuple[str, str, str]:
    if why is not None:
        return name, "fastai", f"batch transform: {why}"
    return name, "fastload fused", "batch transform, drawn by fastai; on the CPU in one native call"


def _scaled(compiled: Compiled, settings: Settings) -> tuple[str, ...]:
    """What decode='scaled' changes."""
    if settings.decode != "scaled":
        return ()
    name = _executor(compiled, settings)[0]
    if (reason := exact_only(name)) is not None:
        return (f"decode='scaled' is left out: {reason}",)
    mean, most = executors()["native"].measured_error(settings.slack)
    return (
        f"decode='scaled' with slack={settings.slack} is an approximation: on a made photo of 1200 x 900 pixels off by "
        f"{mean:.2f} on average and {most:.0f} at most, of 255; files that leave no room for it are decoded exactly",
    )


def _fused(compiled: Compiled, settings: Settings, inner: Any) -> tuple[str, ...]:
    """What batch='fused' changes: the approximation is never without its error."""
    if settings.batch != "fused":
        return ()
    if (reason := fused.refuses(inner)) is not None:
        return (f"batch='fused' is left out: {reason}",)
    channels = 3 if compiled.plan.elements[0].mode == "RGB" else 1
    width, height = compiled.plan.size or (224, 224)
    mean, most = fused.measured_error(inner.after_batch, fused.made_pictures((4, channels, height, width)))
    return (
        f"batch='fused' is an approximation: off from stock by {mean:.1e} on average and {most:.1e} at most, of values in "
        f"[0, 1] before Normalize (measured just now on 4 made pictures of {width} x {height})",
    )


_HOW = {
    "native": "libjpeg in one pass with the resize; Pillow where that is not exact",
    "decoding": "libjpeg by the extension, resized by Pillow, whose arithmetic the extension's does not equal",
    "threads": "Pillow; an ordinary JPEG no further than its crop",
}


def _executor(compiled: Compiled, settings: Settings) -> tuple[str, str]:
    return automatic(compiled.plan, Options()) if settings.executor == "auto" else (settings.executor, "")


def _how(op: Op) -> str:
    if not op.applies:
        return (
            "not applied on this split; its random numbers are drawn as in stock" if draws(op) else "not applied on this split"
        )
    return "drawn in stock's order" if draws(op) else "draws nothing"


def _lines(settings: Settings, inner: Any) -> tuple[str, ...]:
    cpus = machine.usable_cpus()
    threads = f"threads={settings.threads} as asked" if settings.threads else f"threads={cpus.count}: {cpus.reason}"
    workers = inner.fake_l.num_workers
    streams = f"num_workers={workers}: {'the global random stream' if not workers else f'{workers} virtual random streams'}"
    kept = () if settings.cache is None else (_cached(settings.cache, inner),)
    return (f"{threads}", f"{streams}, as stock; no process is started", *kept, pillow())


def _cached(cache: Any, inner: Any) -> str:
    """What a cache gives to a loader."""
    path = as_cached(cache).path
    split = "valid" if getattr(inner.dataset, "split_idx", None) else "train"
    try:
        held = open_cache(path).held(split)
    except CacheError as err:
        return f"cache={path!r}: {err}"
    if held.variants:
        what = f"{held.variants} drawn versions of each image, one by chance each time: NOT stock's batches"
    else:
        exact = {"source": "the files' bytes, exact", "decoded": "their pixels, exact", "final": "finished images, exact"}
        what = exact.get(held.kind) or f"masters, an approximation: {held.loss}"
    return f"cache={path!r}: images come from there ({len(held)} {split}: {what})"


def pillow() -> str:
    """Which Pillow is active: what 'exact' means here."""
    import PIL
    from PIL import features

    jpeg = features.version_codec("jpg")
    if "post" in PIL.__version__:
        return f"Pillow-SIMD {PIL.__version__} (JPEG library {jpeg}): pixels equal stock fastai under Pillow-SIMD"
    return f"Pillow {PIL.__version__} (JPEG library {jpeg}): pixels equal stock fastai under this Pillow"
