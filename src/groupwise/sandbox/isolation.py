"""The two isolations of a zygote, and the paths that its programs may see.

- namespaces: a separate root with only the exposed paths, no network, no other visible process. Everything in the user,
  mount, pid, network, IPC and host-name namespaces dies with process 1. Needs no privilege where the kernel lets users
  create namespaces, and Linux 5.12 (mount_setattr: read-only including all mounts below).
- landlock: the zygote and the programs forked from it may read only the exposed paths. Needs no privilege on Linux 5.13
  and newer. Each version of landlock can refuse more; the seccomp filter refuses what the running kernel's version
  cannot (sockets, signals, truncation, ioctl on devices).

As root the programs run as an unprivileged user; a plain user's programs run as that user.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from groupwise.sandbox import kernel

_FILES = ("/etc/ld.so.cache", "/usr/share/zoneinfo", "/dev/urandom")
_INSTALLED = ("site-packages", "dist-packages")
_NEW_ROOT_CANDIDATES = ("/tmp", "/var/tmp", "/run", "/mnt", "/opt")

_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
# What each version of landlock can refuse: files, TCP, and scopes (abstract sockets, signals).
_FILES_BY_VERSION = {1: (1 << 13) - 1, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
_NETWORK_SINCE, _NETWORK_RIGHTS = 4, 0b11
_SCOPES_SINCE, _SCOPES = 6, 0b11


@dataclass(frozen=True, slots=True)
class Exposed:
    """Paths as they are before isolation, none of them user data."""

    readable: tuple[str, ...]
    """Files, and folders with everything below them. None lies within another."""
    hidden: tuple[str, ...]
    """Folders of installed packages below the readable ones, which programs must not see."""


def exposed_paths() -> Exposed:
    """Return the paths of the running interpreter: the standard library and loadable shared libraries.

    For the zygote, whose `sys.path` holds only the standard library (it starts without `site`).
    """
    folders = [path for path in sys.path if os.path.isdir(path)]
    # `sys.path` uses the paths as named, the loader's cache the resolved ones.
    wanted = {name for path in [*folders, *_library_folders()] for name in (path, os.path.realpath(path))}
    wanted |= {path for path in _FILES if os.path.exists(path)}
    readable = sorted(path for path in wanted if not any(path != other and _is_below(path, other) for other in wanted))
    hidden = {os.path.join(path, name) for path in folders for name in _INSTALLED}
    hidden |= {os.path.realpath(path) for path in hidden}
    return Exposed(
        readable=tuple(readable),
        hidden=tuple(sorted(path for path in hidden if os.path.isdir(path))),
    )


def _library_folders() -> list[str]:
    """Return the loader's folders of shared libraries: the system's, and the interpreter's own."""
    multiarch = getattr(sys.implementation, "_multiarch", "")
    system = [os.path.join(base, multiarch) for base in ("/lib", "/usr/lib")] if multiarch else []
    system = [path for path in system if os.path.isdir(path)] or ["/lib64", "/usr/lib64", "/lib", "/usr/lib"]
    own = [] if sys.base_prefix in ("/", "/usr") else [os.path.join(sys.base_prefix, "lib")]
    return [path for path in [*system, *own] if os.path.isdir(path)]


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def enter_namespaces(exposed: Exposed) -> int:
    """Return 0 in the isolated process 1, and its process number in the caller, which remains to wait."""
    with _identity_writer():
        kernel.unshare(kernel.ALL_NAMESPACES)
    child = os.fork()
    if child:
        return child
    _build_root(exposed)
    socket.sethostname("sandbox")
    kernel.drop_privileges()
    # Last, since changes of identity undo it.
    kernel.die_with_parent()
    return 0


@contextmanager
def _identity_writer() -> Iterator[None]:
    """Around `unshare`: a process outside the namespaces writes the identity that this one has inside."""
    ours, theirs = socket.socketpair()
    target = os.getpid()
    user, group = os.geteuid(), os.getegid()
    writer = os.fork()
    if writer == 0:
        try:
            ours.close()
            if theirs.recv(1):
                theirs.send(_write_identity(target, user, group) or b"ok")
        finally:
            os._exit(0)
    theirs.close()
    try:
        yield
        ours.send(b"1")
        answer = ours.recv(1000)
        if answer != b"ok":
            number, _, path = answer.partition(b" ")
            raise kernel.KernelRefused(f"write {path.decode()}", int(number or 5))
    finally:
        ours.close()
        os.waitpid(writer, 0)


def _write_identity(target: int, user: int, group: int) -> bytes:
    """Return "", or errno and path of what was refused."""
    # Root sets up as root and then changes to another user; a plain user can only be mapped to another number.
    nobody, is_root = kernel.UNPRIVILEGED, user == 0
    users, groups = (
        f"0 0 1\n{nobody} {nobody} 1\n" if is_root else f"{nobody} {number} 1\n" for number in (user, group)
    )
    files = [] if is_root else [("setgroups", "deny")]
    for name, text in [*files, ("uid_map", users), ("gid_map", groups)]:
        path = f"/proc/{target}/{name}"
        try:
            with open(path, "wb", buffering=0) as file:  # the kernel takes one write
                file.write(text.encode())
        except OSError as error:
            return f"{error.errno} {path}".encode()
    return b""


def _build_root(exposed: Exposed) -> None:
    """Switch to a small read-only file system in memory that holds only the exposed paths."""
    # Opened first: the new root may be mounted over a folder that contains some of them.
    sources = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in (*exposed.readable, os.devnull)}
    root = next((path for path in _NEW_ROOT_CANDIDATES if os.path.isdir(path)), None)
    if root is None:
        raise kernel.KernelRefused("choose a folder to mount on", 2, "none of " + ", ".join(_NEW_ROOT_CANDIDATES))
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=755")
    for path, descriptor in sources.items():
        target = root + path
        is_folder = os.path.isdir(f"/proc/self/fd/{descriptor}")
        os.makedirs(target if is_folder else os.path.dirname(target), mode=0o755, exist_ok=True)
        if not is_folder:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        kernel.mount(f"/proc/self/fd/{descriptor}", target, None, kernel.MS_BIND | kernel.MS_REC)
        os.close(descriptor)
    for path in exposed.hidden:
        if os.path.isdir(root + path):
            kernel.mount("tmpfs", root + path, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=4k,mode=755")
    os.chdir(root)
    kernel.pivot_to_working_directory()
    kernel.make_mounts_read_only()


def enter_landlock(exposed: Exposed, newest: int = 99) -> None:
    """Isolate the calling process for good, with no version of landlock above `newest`."""
    ruleset = kernel.landlock_ruleset(ruleset_record(min(kernel.landlock_version(), newest)))
    for path in exposed.readable:
        whole, partial = split_around(path, exposed.hidden)
        for entry in whole:
            kernel.landlock_allow(ruleset, entry, _READ_FILE | _READ_DIR if os.path.isdir(entry) else _READ_FILE)
        for folder in partial:
            kernel.landlock_allow(ruleset, folder, _READ_DIR)
    kernel.landlock_allow(ruleset, os.devnull, _READ_FILE | _WRITE_FILE)
    # Only root can read an interpreter in root's home, and landlock already restricts what may be read.
    is_closed = os.geteuid() == 0 and not all(_is_open_to_all(path) for path in exposed.readable)
    kernel.drop_privileges(reads_as_root=is_closed)
    kernel.landlock_restrict(ruleset)
    os.close(ruleset)
    os.chdir("/")


def ruleset_record(version: int) -> bytes:
    """Return the kernel's landlock_ruleset_attr of this version, which refuses everything that it can."""
    fields = [sum(rights for since, rights in _FILES_BY_VERSION.items() if since <= version)]
    if version >= _NETWORK_SINCE:
        fields.append(_NETWORK_RIGHTS)
    if version >= _SCOPES_SINCE:
        fields.append(_SCOPES)
    return struct.pack(f"={len(fields)}Q", *fields)


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


def _is_open_to_all(path: str) -> bool:
    """Return whether any user can reach and read `path`."""
    for one in (Path(path), *Path(path).parents):
        needed = 0o005 if one.is_dir() else 0o004
        if one.stat().st_mode & needed != needed:
            return False
    return True
