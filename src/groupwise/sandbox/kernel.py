"""System calls that Python's standard library lacks, through ctypes.

Contract: each function changes the calling process (which has one thread) or raises `KernelRefused` with the name of
the step and the errno. For x86_64 and aarch64, which share the numbers used here except where a table says otherwise.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct

UNPRIVILEGED = 65534
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR = 442
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
ALL_NAMESPACES = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET

MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
_MNT_DETACH = 2
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID = 1, 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000

_PRCTL = {"PDEATHSIG": 1, "DUMPABLE": 4, "KEEPCAPS": 8, "SECCOMP": 22, "NO_NEW_PRIVS": 38}
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_CREATE_RULESET_VERSION, _RULE_PATH_BENEATH = 1, 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class KernelRefused(Exception):
    """A step of setting up the isolation was refused."""

    def __init__(self, step: str, number: int, reason: str = "") -> None:
        self.number = number
        super().__init__(f"{step}: {errno.errorcode.get(number, number)} ({reason or os.strerror(number)})")


def _call(step: str, function: str, *arguments: int | bytes | None) -> int:
    # Numbers fill the whole register; where the kernel's parameter is an int, it reads the lower half.
    wide = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = int(getattr(_libc, function)(*wide))
    if result == -1:
        raise KernelRefused(step, ctypes.get_errno())
    return result


def unshare(flags: int) -> None:
    _call("unshare", "unshare", flags)


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    names = os.fsencode(source), os.fsencode(target), kind.encode() if kind else None
    _call(f"mount {source} on {target}", "mount", *names, flags, options.encode() or None)


def make_mounts_read_only() -> None:
    """Make all mounts read-only and ignore their set-user-ID bits."""
    record = struct.pack("=QQQQ", _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID, 0, 0, 0)
    _call("mount_setattr", "syscall", _MOUNT_SETATTR, _AT_FDCWD, b"/", _AT_RECURSIVE, record, len(record))


def pivot_to_working_directory() -> None:
    """Make the working directory, which must be a mount, the root, and unmount everything else."""
    _call("pivot_root", "syscall", _PIVOT_ROOT[platform.machine()], b".", b".")
    _call("umount of the old root", "umount2", b".", _MNT_DETACH)
    os.chdir("/")


def die_with_parent() -> None:
    """Die when the thread that forked this process ends. A later change of user or capabilities undoes it."""
    _prctl("PDEATHSIG", signal.SIGKILL)


def forbid_new_privileges() -> None:
    _prctl("NO_NEW_PRIVS", 1)


def hide_memory() -> None:
    """Forbid other processes of the same user to read this one's memory, and core dumps."""
    _prctl("DUMPABLE", 0)


def install_filter(instructions: bytes) -> None:
    """Install the seccomp filter for this process; needs `forbid_new_privileges` first."""
    buffer = ctypes.create_string_buffer(instructions, len(instructions))
    record = struct.pack("@HP", len(instructions) // 8, ctypes.addressof(buffer))
    _prctl("SECCOMP", _SECCOMP_MODE_FILTER, record)


def drop_privileges(reads_as_root: bool = False) -> None:
    """Give up all capabilities and new privileges for good; root also becomes an unprivileged user and group.

    `reads_as_root` keeps user 0 for file permissions only, for an interpreter below a folder that only root may enter;
    files must then be restricted by other means.
    """
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
        if reads_as_root:
            _prctl("KEEPCAPS", 1)
        os.setresuid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
        if reads_as_root:
            _set_capabilities(1 << 7)  # CAP_SETUID, for the next line
            _libc.setfsuid(ctypes.c_uint(0))
    _set_capabilities(0)
    forbid_new_privileges()


def _set_capabilities(bits: int) -> None:
    """Set effective and permitted capabilities; none are inheritable."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    record = struct.pack("=IIIIII", bits, bits, 0, 0, 0, 0)
    _call("capset", "capset", header, record)


def landlock_version() -> int:
    return _call("landlock_create_ruleset", "syscall", _LANDLOCK_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION)


def landlock_ruleset(record: bytes) -> int:
    """Return the descriptor of a new ruleset; `record` is the kernel's landlock_ruleset_attr."""
    return _call("landlock_create_ruleset", "syscall", _LANDLOCK_CREATE_RULESET, record, len(record), 0)


def landlock_allow(ruleset: int, path: str, rights: int) -> None:
    """Allow `rights` on `path` and everything below."""
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        record = struct.pack("=Qi", rights, descriptor)
        _call(f"landlock_add_rule {path}", "syscall", _LANDLOCK_ADD_RULE, ruleset, _RULE_PATH_BENEATH, record, 0)
    finally:
        os.close(descriptor)


def landlock_restrict(ruleset: int) -> None:
    _call("landlock_restrict_self", "syscall", _LANDLOCK_RESTRICT_SELF, ruleset, 0)


def _prctl(name: str, first: int, second: bytes | int = 0) -> None:
    _call(f"PR_SET_{name}", "prctl", _PRCTL[name], first, second, 0, 0)
