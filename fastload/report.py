"""What a command found, for people and for machines: titled sections of rows, printed as text or given as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Report", "Section", "table"]


@dataclass(frozen=True)
class Section:
    """A heading, rows of (what, where, why), and free lines below; `data` is the same for machines."""

    title: str
    rows: tuple[tuple[str, ...], ...] = ()
    lines: tuple[str, ...] = ()
    data: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return "\n".join([self.title, *(f"  {line}" for line in (*table(self.rows), *self.lines))])


@dataclass(frozen=True)
class Report:
    """Sections in order; `str()` is for people, `to_json()` for machines."""

    title: str
    sections: tuple[Section, ...]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.sections))

    __repr__ = __str__

    def to_json(self) -> str:
        """A JSON object with each section's data under its title."""
        return json.dumps({section.title: section.data for section in self.sections}, indent=2, default=str)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as aligned columns.

    >>> table([("a", "bb"), ("ccc", "d")])
    ['a    bb', 'ccc  d']
    """
    widths = [max(len(row[k]) for row in rows if k < len(row)) for k in range(max(map(len, rows), default=0))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=False)).rstrip() for row in rows]
