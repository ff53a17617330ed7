"""Isolation by landlock: the zygote and the programs forked from it may read only the exposed paths.

Needs no privilege on Linux 5.13 and newer. Each version of landlock can refuse more; the seccomp filter refuses what
the running kernel's version cannot (sockets, signals, truncate, ioctl on devices). Not covered: `stat` of any file, the
machine's name and real process numbers; `namespaces` hides these.
"""

from __future__ import annotations

import os
import struct

from groupwise.sandbox import kernel
from groupwise.sandbox.exposed import Exposed, split_around

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_RIGHTS_OF_VERSION_1 = (1 << 13) - 1
# What each version can refuse: files, TCP, and scopes (abstract sockets, signals).
_FILES_BY_VERSION = {1: _RIGHTS_OF_VERSION_1, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
_NETWORK_SINCE, _NETWORK_RIGHTS = 4, 0b11
_SCOPES_SINCE, _SCOPES = 6, 0b11


def ruleset_record(version: int) -> bytes:
    """Return the kernel's landlock_ruleset_attr of this version, which refuses everything that it can."""
    files = sum(rights for since, rights in _FILES_BY_VERSION.items() if since <= version)
    record = struct.pack("=Q", files)
    if version >= _NETWORK_SINCE:
        record += struct.pack("=Q", _NETWORK_RIGHTS)
    if version >= _SCOPES_SINCE:
        record += struct.pack("=Q", _SCOPES)
    return record


def enter(exposed: Exposed) -> None:
    """Isolate the calling process for good."""
    ruleset = kernel.landlock_ruleset(ruleset_record(kernel.landlock_version()))
    for path in exposed.readable:
        whole, partial = split_around(path, exposed.hidden)
        for entry in whole:
            kernel.landlock_allow(ruleset, entry, _READ_FILE | _READ_DIR if os.path.isdir(entry) else _READ_FILE)
        for folder in partial:
            kernel.landlock_allow(ruleset, folder, _READ_DIR)
    for path in exposed.writable:
        kernel.landlock_allow(ruleset, path, _READ_FILE | _WRITE_FILE)
    if os.geteuid() == 0:
        # Only root can read an interpreter in root's home, and landlock already restricts what may be read.
        kernel.become(kernel.UNPRIVILEGED, reads_as_root=not all(_is_open_to_all(path) for path in exposed.readable))
    else:
        kernel.set_capabilities(0)
    kernel.forbid_new_privileges()
    kernel.landlock_restrict(ruleset)
    os.close(ruleset)
    os.chdir("/")


def _is_open_to_all(path: str) -> bool:
    """Return whether any user can reach and read `path`."""
    while True:
        needed = 0o005 if os.path.isdir(path) else 0o004
        if os.stat(path).st_mode & needed != needed:
            return False
        if path == "/":
            return True
        path = os.path.dirname(path)
