"""The display while something runs: a live picture in a terminal, plain lines anywhere else.

Contract: only a terminal gets escape codes. A stream that goes away (`| head`, a closed terminal) silences the display
and never raises. There is no drawing thread, because other code forks processes, and a fork beside a drawing thread can
deadlock.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TextIO


class Screen:
    def __init__(self, stream: TextIO | None, is_kept: bool = True) -> None:
        """`stream` is stderr by default. With `is_kept` the last picture stays at the end."""
        self._stream: TextIO | None = sys.stderr if stream is None else stream
        self._live: Any = None
        if not _is_terminal(self._stream):
            return
        from rich.console import Console
        from rich.live import Live

        # Other output goes above the picture, but only from a stream that is the terminal: `> file` stays a file.
        self._live = Live(
            console=Console(file=self._stream, highlight=False, markup=False, emoji=False),
            auto_refresh=False,
            transient=not is_kept,
            redirect_stdout=_is_terminal(sys.stdout),
            redirect_stderr=_is_terminal(sys.stderr),
        )
        self._guard(self._live.start)

    @property
    def is_live(self) -> bool:
        return self._live is not None

    @property
    def height(self) -> int:
        """Height of a live display in lines."""
        return int(self._live.console.size.height)

    def show(self, picture: Any) -> None:
        """Replace the picture by something that rich renders. Does nothing when the display is not live."""
        if self._live is not None and self._stream is not None:
            self._guard(lambda: self._live.update(picture, refresh=True))

    def say(self, line: str) -> None:
        """Print a line, above the picture if there is one."""
        stream = self._stream
        if stream is None:
            return
        encoding = getattr(stream, "encoding", None) or "utf-8"
        text = line.encode(encoding, "replace").decode(encoding)

        def emit() -> None:
            if self._live is not None:
                self._live.console.print(text)
            else:
                stream.write(text + "\n")
                stream.flush()

        self._guard(emit)

    def end(self) -> None:
        """Stop the live picture; later output is plain lines."""
        if self._live is not None:
            live, self._live = self._live, None
            self._guard(live.stop)

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except (OSError, ValueError):
            # Python raises ValueError for a stream that we closed ourselves.
            self._stream = None


def _is_terminal(stream: TextIO | None) -> bool:
    # Not rich's own test: with FORCE_COLOR it would write escape codes to a pipe.
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
