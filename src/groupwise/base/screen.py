"""The display while something runs: a live picture in a terminal or a notebook, plain lines anywhere else.

Contract: only a terminal gets escape codes, and a notebook gets one output that is replaced in place. A stream that
goes away (`| head`, a closed terminal) silences the display and never raises. There is no drawing thread, because other
code forks processes, and a fork beside a drawing thread can deadlock.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO


class Screen:
    def __init__(self, stream: TextIO | None, is_kept: bool = True) -> None:
        """`stream` is stderr by default. With `is_kept` the last picture stays at the end."""
        self._stream: TextIO | None = sys.stderr if stream is None else stream
        self._live: Any = None
        if stream is None and _is_in_notebook():
            self._live = _NotebookLive(self._stream, is_kept)
        if self._live is not None or not _is_terminal(self._stream):
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


class _NotebookLive:
    """What `Screen` uses of rich's `Live`, for a notebook; rich's own needs a widget there."""

    def __init__(self, stream: TextIO | None, is_kept: bool) -> None:
        from IPython.display import display
        from rich.console import Console

        self.console = Console(file=stream, width=100, force_jupyter=False, highlight=False, markup=False, emoji=False)
        self._is_kept = is_kept
        self._handle = display({"text/plain": ""}, raw=True, display_id=True)

    def update(self, picture: Any, *, refresh: bool) -> None:
        from rich.console import Console

        page = Console(file=io.StringIO(), record=True, width=100, force_terminal=True, force_jupyter=False)
        page.print(picture)
        text = page.export_text(clear=False).rstrip()
        html = page.export_html(inline_styles=True, code_format='<pre style="line-height: 1.4">{code}</pre>')
        self._handle.update({"text/plain": text, "text/html": html}, raw=True)

    def stop(self) -> None:
        if not self._is_kept:
            self._handle.update({"text/plain": ""}, raw=True)


def _is_in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def _is_terminal(stream: TextIO | None) -> bool:
    # Not rich's own test: with FORCE_COLOR it would write escape codes to a pipe.
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
