"""Every error fastload raises by itself, as one tree.

    FastloadError                 the root: `except FastloadError` catches all of them
    +-- SettingsError             a keyword, environment variable or file asks for something impossible (ValueError)
    +-- MissingPackage            an optional package is needed; the message carries its pip line (ImportError)
    +-- DataError                 a folder, file or target function is not what was asked for (ValueError)
    +-- CacheError                a cache is damaged, unfinished or not what was asked for (ValueError)
    |   +-- StaleCache            a cache does not hold what the data are now
    +-- EmptyBatch                every image of one batch was skipped as unreadable (RuntimeError)
    +-- LoaderTimeout             a batch was not ready within `timeout` seconds (RuntimeError)
    +-- ForkedIterator            an iterator was carried into a forked process, where its threads are gone (RuntimeError)
    +-- StateError                a saved loader state does not belong to this loader (ValueError)
    +-- MismatchError             two loaders that must agree gave different batches (AssertionError)

Errors of the image itself keep Pillow's own type, so `except OSError` in a script works as before; `with_path` only adds
the file's path to the message.
"""

from __future__ import annotations

__all__ = [
    "CacheError",
    "DataError",
    "EmptyBatch",
    "FastloadError",
    "ForkedIterator",
    "LoaderTimeout",
    "MismatchError",
    "MissingPackage",
    "SettingsError",
    "StaleCache",
    "StateError",
    "with_path",
]


class FastloadError(Exception):
    """Root of the errors that fastload raises by itself."""


class SettingsError(FastloadError, ValueError):
    """A keyword, environment variable or settings file asks for something impossible."""


class MissingPackage(FastloadError, ImportError):
    """An optional package is needed and not installed; the message carries its pip line."""


class DataError(FastloadError, ValueError):
    """A folder, file or target function is not what was asked for."""


class CacheError(FastloadError, ValueError):
    """A cache is damaged, unfinished, or not what was asked for."""


class StaleCache(CacheError):
    """A cache does not hold what the data are now."""


class EmptyBatch(FastloadError, RuntimeError):
    """Every image of one batch was skipped as unreadable, so there is nothing to train on."""


class LoaderTimeout(FastloadError, RuntimeError):
    """A batch was not ready within the loader's `timeout` seconds."""


class ForkedIterator(FastloadError, RuntimeError):
    """An iterator was carried into a forked process, where its threads do not exist."""


class StateError(FastloadError, ValueError):
    """A saved loader state does not belong to this loader."""


class MismatchError(FastloadError, AssertionError):
    """Two loaders that must agree gave different batches."""


def with_path(err: BaseException, path: object) -> BaseException:
    """Return `err` itself, its type kept, with `path` in its message unless it is there already.

    >>> str(with_path(OSError("image file is truncated"), "cat/1.jpg"))
    'image file is truncated [file: cat/1.jpg]'
    >>> str(with_path(FileNotFoundError(2, "No such file or directory", "cat/1.jpg"), "cat/1.jpg"))
    "[Errno 2] No such file or directory: 'cat/1.jpg'"
    """
    text = str(err)
    if str(path) in text or repr(str(path))[1:-1] in text:
        return err
    if isinstance(err, OSError) and err.errno is not None:
        err.filename = str(path)
    else:
        err.args = (f"{text or type(err).__name__} [file: {path}]", *err.args[1:])
    return err
