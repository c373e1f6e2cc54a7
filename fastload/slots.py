"""Host batch buffers: one new tensor per batch, never handed out twice.

A consumer may keep any batch for as long as it likes (get_preds with inputs does), and some write into it (CutMix), so a
buffer is never used again. Rows are numpy views; executor threads write each image straight into its row.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["Slot", "nbytes"]


class Slot:
    """A uint8 tensor [B, *shape], page-locked where `pin` is set and a CUDA device exists; `rows` are views to write into.

    With `channels_last` a tensor [B, C, H, W] lies in memory as [B, H, W, C].
    """

    def __init__(self, count: int, shape: tuple[int, ...], pin: bool = False, channels_last: bool = False) -> None:
        self.channels_last = channels_last and len(shape) == 3
        self.order = torch.channels_last if self.channels_last else torch.contiguous_format
        pin = pin and torch.cuda.is_available()
        self.tensor = torch.empty((count, *shape), dtype=torch.uint8, pin_memory=pin, memory_format=self.order)
        self.rows: Any = self.tensor.numpy()

    def keep(self, positions: list[int]) -> torch.Tensor:
        """The finished batch: the tensor itself, or a copy of the rows in `positions` where some images were skipped."""
        if len(positions) == len(self.rows):
            return self.tensor
        return self.tensor.index_select(0, torch.tensor(positions, dtype=torch.int64)).contiguous(memory_format=self.order)


def nbytes(count: int, shape: tuple[int, ...]) -> int:
    """Bytes of a Slot of `count` images.

    >>> nbytes(64, (3, 224, 224))
    9633792
    """
    size = count
    for n in shape:
        size *= n
    return size
