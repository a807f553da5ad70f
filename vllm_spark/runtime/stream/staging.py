"""The memory that reads land in: one ring of pages for weights, heap pages for small tensors.

Anonymous mappings are page-aligned, as direct I/O wants, are given back to the system at once when closed,
and can be registered with the CUDA driver so that copies to the device run asynchronously.
"""

from __future__ import annotations

import mmap
from collections import deque

__all__ = ["PAGE", "Ring", "pages", "round_up"]

PAGE = 4096


def round_up(size: int) -> int:
    """The next multiple of a page."""
    return -(-size // PAGE) * PAGE


def pages(size: int) -> memoryview:
    """Fresh zeroed pages; they go when the last view of them does."""
    return memoryview(mmap.mmap(-1, max(PAGE, round_up(size))))


class Ring:
    """A circular allocator: regions are freed in the order they were taken.

    Args:
        size: bytes; rounded up to pages.
    """

    def __init__(self, size: int) -> None:
        self.memory = pages(size)
        self.size = len(self.memory)
        self._taken: deque[tuple[int, int]] = deque()
        self._next = 0

    def take(self, size: int) -> int | None:
        """The offset of `size` contiguous bytes, or None while there is no room.

        Raises:
            ValueError: the ring is smaller than `size`, so that waiting would not help.
        """
        size = max(PAGE, round_up(size))
        if size > self.size:
            raise ValueError(f"{size} bytes do not fit a ring of {self.size}")
        at = self._place(size)
        if at is not None:
            self._taken.append((at, size))
            self._next = at + size
        return at

    def _place(self, size: int) -> int | None:
        if not self._taken:
            return 0
        oldest = self._taken[0][0]
        if self._next > oldest:  # free: behind the newest, and before the oldest
            if self._next + size <= self.size:
                return self._next
            return 0 if size <= oldest else None
        return self._next if self._next + size <= oldest else None

    def free(self, at: int) -> None:
        """Give back the oldest region, which starts at `at`.

        Raises:
            ValueError: another region is older; the caller has lost count.
        """
        if not self._taken or self._taken[0][0] != at:
            raise ValueError(f"region {at} is not the oldest")
        self._taken.popleft()

    @property
    def used(self) -> int:
        """Bytes taken."""
        return sum(size for _, size in self._taken)
