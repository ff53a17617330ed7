"""Isolation by namespaces: a separate root with only the exposed paths, no network, no other visible process.

`enter` creates user, mount, pid, network, IPC and host-name namespaces and forks: the child is process 1 of the new
namespaces, and everything in them dies with it. Needs no privilege where the kernel lets users create namespaces. As
root the programs run as an unprivileged user; a plain user's programs run as that user, who owns nothing reachable.

Needs Linux 5.12 (mount_setattr: read-only including all mounts below).
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from groupwise.sandbox import kernel
from groupwise.sandbox.exposed import Exposed

_NAMESPACES = (
    kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
)
_NEW_ROOT_CANDIDATES = ("/tmp", "/var/tmp", "/run", "/mnt", "/opt")


def enter(exposed: Exposed) -> int:
    """Return 0 in the isolated process 1, and its process number in the caller, which remains to wait."""
    is_root = os.geteuid() == 0
    with _identity_writer(is_root):
        kernel.unshare(_NAMESPACES)
    child = os.fork()
    if child:
        return child
    _build_root(exposed)
    socket.sethostname("sandbox")
    if is_root:
        kernel.become(kernel.UNPRIVILEGED)
    else:
        kernel.set_capabilities(0)
    kernel.forbid_new_privileges()
    # Last, since changes of identity undo it.
    kernel.die_with_parent()
    return 0


@contextlib.contextmanager
def _identity_writer(is_root: bool) -> Iterator[None]:
    """Around `unshare`: a process outside the namespaces writes the identity that this one has inside."""
    ready_reader, ready_writer = os.pipe()
    answer_reader, answer_writer = os.pipe()
    target = os.getpid()
    user, group = os.geteuid(), os.getegid()
    writer = os.fork()
    if writer == 0:
        os.close(ready_writer)
        failure = b""
        if os.read(ready_reader, 1):
            failure = _write_identity(target, user, group, is_root)
        os.write(answer_writer, failure or b"ok")
        os._exit(0)
    try:
        yield
        os.write(ready_writer, b"1")
        os.close(answer_writer)
        answer = os.read(answer_reader, 1000)
        if answer != b"ok":
            number, _, path = answer.partition(b" ")
            raise kernel.KernelRefused(f"write {path.decode()}", int(number or 5))
    finally:
        for descriptor in (ready_reader, ready_writer, answer_reader):
            os.close(descriptor)
        with contextlib.suppress(OSError):
            os.close(answer_writer)
        os.waitpid(writer, 0)


def _write_identity(target: int, user: int, group: int, is_root: bool) -> bytes:
    """Return "", or errno and path of what was refused."""
    # Root sets up as root and then changes to another user; a plain user can only be mapped to another number.
    nobody = kernel.UNPRIVILEGED
    users, groups = (
        f"0 0 1\n{nobody} {nobody} 1\n" if is_root else f"{nobody} {number} 1\n" for number in (user, group)
    )
    files = [] if is_root else [("setgroups", "deny")]
    for name, text in [*files, ("uid_map", users), ("gid_map", groups)]:
        path = f"/proc/{target}/{name}"
        try:
            descriptor = os.open(path, os.O_WRONLY)
            try:
                os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            return f"{error.errno} {path}".encode()
    return b""


def _build_root(exposed: Exposed) -> None:
    """Switch to a small read-only file system in memory that holds only the exposed paths."""
    # Opened first: the new root may be mounted over a folder that contains some of them.
    sources = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in (*exposed.readable, *exposed.writable)}
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
    kernel.protect_mounts("/", kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID)
