"""The long texts of a report: each kept once, cut only where it says so, within a budget.

A page is sent by mail and opened on a phone, so what it may hold is limited; what was left out is counted, and the page
says so. Short texts of ours do not go through here.
"""

from __future__ import annotations

from groupwise.base.harmless import visible

MAX_TEXT_CHARS = 200_000
"""Of one text; a browser is still quick with this."""
MAX_ALL_BYTES = 2_600_000
RESERVED_BYTES = 500_000
"""Kept back from the many for the few: an example is never left out because there are many problems."""


class Texts:
    def __init__(self, max_all_bytes: int = MAX_ALL_BYTES, reserved_bytes: int = RESERVED_BYTES) -> None:
        self._numbers: dict[str, int] = {}
        self._max_all_bytes = max_all_bytes
        self._reserved_bytes = reserved_bytes
        self.num_bytes = 0
        self.num_left_out = 0
        self.num_cut = 0

    def add(self, text: str, is_one_of_many: bool = False) -> int | None:
        """Its number among `all()`; None where there is no more room."""
        shown = visible(text[:MAX_TEXT_CHARS])
        if len(text) > MAX_TEXT_CHARS:
            shown += f"\n\n[cut here: {len(text) - MAX_TEXT_CHARS:,} of {len(text):,} characters are not in this page]"
        if shown in self._numbers:
            return self._numbers[shown]
        # "<" is written as six characters.
        size = len(shown.encode("utf-8")) + 5 * shown.count("<")
        if self.num_bytes + size > self._max_all_bytes - (self._reserved_bytes if is_one_of_many else 0):
            self.num_left_out += 1
            return None
        self.num_cut += len(text) > MAX_TEXT_CHARS
        self.num_bytes += size
        self._numbers[shown] = len(self._numbers)
        return self._numbers[shown]

    def all(self) -> list[str]:
        return list(self._numbers)
