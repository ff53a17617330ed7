"""The paths that a program may see: the standard library and loadable shared libraries.

Contract: paths as they are before isolation, none of them user data. Called in the zygote, whose `sys.path` holds only
the standard library (it starts without `site`).
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

_DEVICES = ("/dev/null",)
_FILES = ("/etc/ld.so.cache", "/usr/share/zoneinfo", "/dev/urandom")
_INSTALLED = ("site-packages", "dist-packages")


@dataclass(frozen=True, slots=True)
class Exposed:
    readable: tuple[str, ...]
    """Files, and folders with everything below them. None lies within another."""
    writable: tuple[str, ...]
    """Devices that discard what is written."""
    hidden: tuple[str, ...]
    """Folders of installed packages below the readable ones, which programs must not see."""


def exposed_paths() -> Exposed:
    """Return the paths of the running interpreter."""
    folders = [path for path in sys.path if os.path.isdir(path)]
    # `sys.path` uses the paths as named, the loader's cache the resolved ones.
    wanted = {name for path in [*folders, *_library_folders()] for name in (path, os.path.realpath(path))}
    wanted |= {path for path in _FILES if os.path.exists(path)}
    readable = sorted(path for path in wanted if not any(path != other and _is_below(path, other) for other in wanted))
    hidden = {os.path.join(path, name) for path in folders for name in _INSTALLED}
    hidden |= {os.path.realpath(path) for path in hidden}
    return Exposed(
        readable=tuple(readable),
        writable=tuple(path for path in _DEVICES if os.path.exists(path)),
        hidden=tuple(sorted(path for path in hidden if os.path.isdir(path))),
    )


def split_around(path: str, hidden: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return (whole, partial): entries to show with everything below, and folders to show only as a list of names.

    Links within a folder are skipped: access through a link is decided by its target.
    """
    if path in hidden:
        return [], []
    if not any(_is_below(one, path) for one in hidden):
        return [path], []
    whole, partial = [], [path]
    for name in sorted(os.listdir(path)):
        entry = os.path.join(path, name)
        if not os.path.islink(entry):
            below = split_around(entry, hidden)
            whole += below[0]
            partial += below[1]
    return whole, partial


def _library_folders() -> list[str]:
    """Return the loader's folders of shared libraries: the system's, and the interpreter's own."""
    multiarch = getattr(sys.implementation, "_multiarch", "")
    system = [os.path.join(base, multiarch) for base in ("/lib", "/usr/lib")] if multiarch else []
    system = [path for path in system if os.path.isdir(path)] or ["/lib64", "/usr/lib64", "/lib", "/usr/lib"]
    own = [] if sys.base_prefix in ("/", "/usr") else [os.path.join(sys.base_prefix, "lib")]
    return [path for path in [*system, *own] if os.path.isdir(path)]


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")
