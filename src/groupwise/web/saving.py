"""Writing of pages and tables: all or nothing, with an error that names the file."""

from __future__ import annotations

from pathlib import Path

from groupwise.runs.files import write_atomic, write_failure


def save_text(path: Path, text: str) -> Path:
    """Write `text` to `path`, make its folder if necessary, and return `path`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, [text.encode("utf-8")])
    except OSError as error:
        raise write_failure(path, error) from error
    return path
