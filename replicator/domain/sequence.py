"""The order of changes: tuples compared left to right, never the time of arrival."""

from __future__ import annotations

SequenceValue = int | str | bytes
Sequence = tuple[SequenceValue, ...]
"""One to four non-null comparable elements, of fixed types per table. Equal sequence and key mean the same change."""

EPOCH_BITS = 7
"""The top bits of the first element (below the sign) hold the epoch that an operator declares after a fail-over."""

EPOCH_SHIFT = 63 - EPOCH_BITS
MAX_EPOCH = (1 << EPOCH_BITS) - 1


def with_epoch(element: int, epoch: int) -> int:
    """`element` raised above every element of earlier epochs; requires 0 <= element < 2**56 and 0 <= epoch <= 127."""
    if not 0 <= element < (1 << EPOCH_SHIFT):
        raise ValueError(f"a sequence element of {element.bit_length()} bits leaves no room for the epoch")
    if not 0 <= epoch <= MAX_EPOCH:
        raise ValueError(f"epoch {epoch} is outside 0..{MAX_EPOCH}")
    return element | (epoch << EPOCH_SHIFT)
