"""The owner's end of a zygote: its process and the control socket.

Contract: `Link(isolation)` starts an isolated zygote or raises `StartFailed`. A link belongs to the process that made
it; in a fork it must be forgotten (`forget`), never closed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from groupwise.sandbox import wire

_PACKAGE = Path(__file__).resolve().parent
_START_SECONDS = 60.0
_CLOSE_SECONDS = 5.0

# The zygote's modules under their usual names, but without running the packages' own __init__.
_BOOT = """
import sys, types
package, control, owner, isolation = sys.argv[1:5]
for name in ("groupwise", "groupwise.sandbox"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [package]
from groupwise.sandbox.zygote import main
main(int(control), int(owner), isolation)
"""


class StartFailed(Exception):
    """The zygote could not be started or isolated; the message says at which step, with which errno."""


class Link:
    def __init__(self, isolation: str) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                self.process = _spawn(isolation, theirs.fileno())
        except OSError as error:
            self.control.close()
            raise StartFailed(f"start {sys.executable}: {error}") from error
        self.control.settimeout(_START_SECONDS)
        try:
            answer = self.receive()
        except BaseException as error:
            self.kill()
            if isinstance(error, TimeoutError):
                raise StartFailed(f"no answer within {_START_SECONDS:.0f} s of starting") from None
            raise
        if answer != wire.READY:
            last_words = self.kill()
            raise StartFailed(answer.decode(errors="replace") or f"{sys.executable} ended while starting: {last_words}")
        self.control.settimeout(None)

    def send(self, request: bytes, descriptors: Sequence[int] = ()) -> bool:
        """Send a request; return False when the zygote is gone."""
        try:
            if descriptors:
                socket.send_fds(self.control, [request], list(descriptors))
            else:
                self.control.send(request)
        except ConnectionError:
            return False
        return True

    def receive(self) -> bytes:
        """Return the next report; empty when the zygote is gone."""
        try:
            return self.control.recv(wire.MAX_REPLY_BYTES)
        except ConnectionError:
            return b""

    def close(self) -> None:
        """End the zygote with all of its programs and wait for it."""
        self.control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_CLOSE_SECONDS)
        self.kill()

    def kill(self) -> str:
        """Kill the zygote and return what it wrote to stderr."""
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        # Its processes in the namespaces may keep the pipe open a moment longer: read what is there.
        os.set_blocking(self.process.stderr.fileno(), False)
        text = (self.process.stderr.read() or b"").decode(errors="replace").strip()
        self._drop()
        return text[-1000:] or "it said nothing"

    def forget(self) -> None:
        """Close a fork's copies without touching the zygote, which belongs to the parent."""
        self.process.returncode = 0  # not ours to wait for
        self._drop()

    def _drop(self) -> None:
        self.control.close()
        if self.process.stderr is not None:
            self.process.stderr.close()


def _spawn(isolation: str, control: int) -> subprocess.Popen[bytes]:
    # A hash seed gives sets one order in every program. The rest of the owner's environment is not passed on.
    environment = {"PYTHONHASHSEED": "0"}
    if "LD_LIBRARY_PATH" in os.environ:  # some interpreters need it to start
        environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
    owner = os.pidfd_open(os.getpid())
    # The last one is for people who read a list of processes.
    arguments = [str(_PACKAGE), str(control), str(owner), isolation, f"sandbox of process {os.getpid()}"]
    try:
        return subprocess.Popen(
            [sys.executable, "-s", "-S", "-P", "-B", "-X", "utf8", "-c", _BOOT, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=(control, owner),
            cwd="/",
            env=environment,
            start_new_session=True,  # Ctrl-C is for the owner alone
        )
    finally:
        os.close(owner)
