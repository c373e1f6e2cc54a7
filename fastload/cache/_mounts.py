"""Whether a file lies on a network file system, where a mapped file costs a round trip a page and dies with its server."""

from __future__ import annotations

from functools import cache
from pathlib import Path

__all__ = ["remote"]

_NETWORK = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "9p", "virtiofs"),
    *("orangefs", "pvfs2", "panfs", "wekafs", "sshfs", "davfs", "gcsfuse", "s3fs", "goofys", "juicefs"),
)


def remote(path: Path, table: Path = Path("/proc/self/mounts")) -> bool:
    """Whether `path` is on a file system of a network kind, by the kernel's own table of mounts; False where there is none."""
    kind = "" if not table.exists() else _kind(path.resolve(), table)
    return kind.removeprefix("fuse.").partition(".")[0] in _NETWORK or (kind.startswith("fuse.") and kind != "fuse.overlayfs")


@cache
def _mounts(table: Path) -> tuple[tuple[Path, str], ...]:
    lines = [line.split(" ") for line in table.read_text(errors="surrogateescape").splitlines()]
    return tuple((Path(_unescaped(line[1])), line[2]) for line in lines if len(line) > 2)


def _kind(path: Path, table: Path) -> str:
    """Type of the file system that holds `path`: of the longest mount point above it, the last one mounted there."""
    kind, depth = "", -1
    for place, found in _mounts(table):
        if path.is_relative_to(place) and len(place.parts) >= depth:
            kind, depth = found, len(place.parts)
    return kind


def _unescaped(text: str) -> str:
    r"""A mount point as the kernel writes it.

    >>> _unescaped(r"/mnt/my\040data")
    '/mnt/my data'
    """
    for code in ("\\040", "\\011", "\\012", "\\134"):
        text = text.replace(code, chr(int(code[1:], 8)))
    return text
