"""Who owns which page of the key-value pool.

Attention reads a request's keys as contiguous views, so pages are handed out in runs: next to the request's last
page when that is free, else inside the largest free run, a gap behind its start, so that the neighbour can grow.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    """Pages start .. start + count - 1."""

    start: int
    count: int

    @property
    def stop(self) -> int:
        return self.start + self.count


class OutOfPages(Exception):
    """Fewer free pages than asked for; nothing was taken."""


class PageAllocator:
    """Free runs of pages, sorted and merged. New places start at a multiple of ``align`` pages where possible."""

    def __init__(self, pages: int, *, align: int = 1, gap: int = 0) -> None:
        self.pages = pages
        self._align = align
        self._gap = gap
        self.free_pages = pages
        self._starts: list[int] = [0] if pages else []
        self._counts: dict[int, int] = {0: pages} if pages else {}

    def allocate(self, count: int, *, after: int | None = None) -> list[Run]:
        """Take ``count`` pages, preferably from page ``after`` on.

        Raises:
            OutOfPages: fewer are free.
        """
        if count > self.free_pages:
            raise OutOfPages(f"{count} pages wanted, {self.free_pages} free of {self.pages}")
        runs: list[Run] = []
        if after is not None and after in self._counts:
            runs.append(self._take(after, min(count, self._counts[after])))
        taken = sum(run.count for run in runs)
        while taken < count:
            start = max(self._starts, key=self._counts.__getitem__)
            room = self._counts[start]
            wanted = min(count - taken, room)
            runs.append(self._take(self._place(start, room, wanted), wanted))
            taken += wanted
        return runs

    def _place(self, start: int, room: int, wanted: int) -> int:
        gap = self._gap if start and 4 * (wanted + self._gap) <= room else 0
        aligned = -(-(start + gap) // self._align) * self._align
        return aligned if aligned + wanted <= start + room else start

    def _take(self, begin: int, count: int) -> Run:
        position = bisect_right(self._starts, begin) - 1
        start = self._starts[position]
        room = self._counts.pop(start)
        del self._starts[position]
        if begin > start:
            self._insert(start, begin - start)
        rest = start + room - (begin + count)
        if rest:
            self._insert(begin + count, rest)
        self.free_pages -= count
        return Run(begin, count)

    def _insert(self, start: int, count: int) -> None:
        self._starts.insert(bisect_left(self._starts, start), start)
        self._counts[start] = count

    def free(self, start: int, count: int) -> None:
        """Give pages back.

        Raises:
            ValueError: a page is outside the pool or free already.
        """
        if count <= 0:
            return
        if start < 0 or start + count > self.pages:
            raise ValueError(f"pages {start}..{start + count - 1} are outside a pool of {self.pages}")
        position = bisect_left(self._starts, start)
        before = self._starts[position - 1] if position else None
        behind = self._starts[position] if position < len(self._starts) else None
        if (before is not None and before + self._counts[before] > start) or (
            behind is not None and behind < start + count
        ):
            raise ValueError(f"pages {start}..{start + count - 1} are free already, at least in part")
        self.free_pages += count
        if before is not None and before + self._counts[before] == start:
            start, count = before, count + self._counts.pop(before)
            del self._starts[position - 1]
            position -= 1
        if behind is not None and behind == start + count:
            count += self._counts.pop(behind)
            del self._starts[position]
        self._starts.insert(position, start)
        self._counts[start] = count

    def check(self) -> None:
        """Raise AssertionError when the books do not balance (used by tests and the idle check)."""
        total, last = 0, -1
        for start in self._starts:
            assert start > last, "free runs overlap or touch unmerged"
            total += self._counts[start]
            last = start + self._counts[start]
        assert total == self.free_pages, "free pages miscounted"
        assert len(self._counts) == len(self._starts), "free runs miscounted"
