"""System calls that Python's standard library lacks, through ctypes.

Contract: each function changes the calling process (which has one thread) or raises `KernelRefused` with the name of
the step and the errno. For x86_64 and aarch64, which share the numbers used here except where a table says otherwise.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

ARCHITECTURES = ("x86_64", "aarch64")
UNPRIVILEGED = 65534
_LOWER_NUMBERS = {"x86_64": {"pivot_root": 155}, "aarch64": {"pivot_root": 41}}
_MOUNT_SETATTR = 442
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000

MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
MNT_DETACH = 2
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID = 1, 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 8, 22, 38
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_LANDLOCK_CREATE_RULESET_VERSION, _LANDLOCK_RULE_PATH_BENEATH = 1, 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class KernelRefused(Exception):
    """A step of setting up the isolation was refused."""

    def __init__(self, step: str, number: int, reason: str = "") -> None:
        self.step = step
        self.number = number
        self.reason = reason or os.strerror(number)
        super().__init__(f"{step}: {errno.errorcode.get(number, number)} ({self.reason})")


def _call(step: str, function: str, *arguments: object) -> int:
    result = int(getattr(_libc, function)(*arguments))
    if result == -1:
        raise KernelRefused(step, ctypes.get_errno())
    return result


def _syscall(step: str, number: int, *arguments: object) -> int:
    return _call(step, "syscall", ctypes.c_long(number), *arguments)


def unshare(flags: int) -> None:
    _call("unshare", "unshare", ctypes.c_int(flags))


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    _call(
        f"mount {source} on {target}",
        "mount",
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode() or None,
    )


def protect_mounts(path: str, attributes: int) -> None:
    """Add attributes to the mount at `path` and all below it."""
    record = struct.pack("=QQQQ", attributes, 0, 0, 0)
    _syscall(
        "mount_setattr",
        _MOUNT_SETATTR,
        ctypes.c_int(_AT_FDCWD),
        os.fsencode(path),
        ctypes.c_uint(_AT_RECURSIVE),
        record,
        ctypes.c_size_t(len(record)),
    )


def pivot_to_working_directory() -> None:
    """Make the working directory, which must be a mount, the root, and unmount everything else."""
    number = _LOWER_NUMBERS[platform.machine()]["pivot_root"]
    _syscall("pivot_root", number, b".", b".")
    _call("umount of the old root", "umount2", b".", ctypes.c_int(MNT_DETACH))
    os.chdir("/")


def die_with_parent() -> None:
    """Die when the thread that forked this process ends. A later change of user or capabilities undoes it."""
    _prctl("PR_SET_PDEATHSIG", _PR_SET_PDEATHSIG, 9)


def forbid_new_privileges() -> None:
    _prctl("PR_SET_NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)


def hide_memory() -> None:
    """Forbid other processes of the same user to read this one's memory, and core dumps."""
    _prctl("PR_SET_DUMPABLE", _PR_SET_DUMPABLE, 0)


def install_filter(instructions: bytes) -> None:
    """Install the seccomp filter for this process; needs `forbid_new_privileges` first."""
    buffer = ctypes.create_string_buffer(instructions, len(instructions))
    record = struct.pack("@HP", len(instructions) // 8, ctypes.addressof(buffer))
    _prctl("PR_SET_SECCOMP", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, record)


def become(user: int, reads_as_root: bool = False) -> None:
    """Change from root to an unprivileged user and group permanently, without any capability.

    `reads_as_root` keeps user 0 for file permissions only, for an interpreter below a folder that only root may enter;
    files must then be restricted by other means.
    """
    os.setgroups([])
    os.setresgid(user, user, user)
    if reads_as_root:
        _prctl("PR_SET_KEEPCAPS", _PR_SET_KEEPCAPS, 1)
        os.setresuid(user, user, user)
        set_capabilities(1 << 7)  # CAP_SETUID, for the next line
        _libc.setfsuid(ctypes.c_uint(0))
    else:
        os.setresuid(user, user, user)
    set_capabilities(0)


def set_capabilities(bits: int) -> None:
    """Set effective and permitted capabilities; none are inheritable."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    record = struct.pack("=IIIIII", bits, bits, 0, 0, 0, 0)
    _call("capset", "capset", header, record)


def landlock_version() -> int:
    return _syscall(
        "landlock_create_ruleset",
        _LANDLOCK_CREATE_RULESET,
        None,
        ctypes.c_size_t(0),
        ctypes.c_uint(_LANDLOCK_CREATE_RULESET_VERSION),
    )


def landlock_ruleset(record: bytes) -> int:
    """Return the descriptor of a new ruleset; `record` is the kernel's landlock_ruleset_attr."""
    return _syscall(
        "landlock_create_ruleset", _LANDLOCK_CREATE_RULESET, record, ctypes.c_size_t(len(record)), ctypes.c_uint(0)
    )


def landlock_allow(ruleset: int, path: str, rights: int) -> None:
    """Allow `rights` on `path` and everything below."""
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        record = struct.pack("=Qi", rights, descriptor)
        _syscall(
            f"landlock_add_rule {path}",
            _LANDLOCK_ADD_RULE,
            ctypes.c_int(ruleset),
            ctypes.c_int(_LANDLOCK_RULE_PATH_BENEATH),
            record,
            ctypes.c_uint(0),
        )
    finally:
        os.close(descriptor)


def landlock_restrict(ruleset: int) -> None:
    _syscall("landlock_restrict_self", _LANDLOCK_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0))


def _prctl(step: str, option: int, first: int, second: bytes | int = 0) -> None:
    second_argument = second if isinstance(second, bytes) else ctypes.c_ulong(second)
    zero = ctypes.c_ulong(0)
    _call(step, "prctl", ctypes.c_int(option), ctypes.c_ulong(first), second_argument, zero, zero)
