"""One program on its owner's side: its descriptors, its output so far, and its outcome."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import socket
import time
from dataclasses import dataclass, field
from io import FileIO

from groupwise.base.signals import signal_name
from groupwise.sandbox import wire
from groupwise.sandbox.outcome import ProgramLimits, ProgramOutcome, ProgramStatus

_READ_BYTES = 65536
_GRACE_SECONDS = 20.0
LOOK_SECONDS = 0.25
"""Time awaited after which the owner asks what CPU time a program has used since the last look."""
_LEAST_SHARE = 0.01
"""Share of a processor below which a program sleeps. One that computes has more, on a busy machine as well."""
_CRASHES_WITHOUT_MEMORY = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)


@dataclass(slots=True)
class Output:
    """Stdout or stderr: kept up to a limit, but read beyond it so that the program does not block us."""

    pipe: FileIO
    limit: int
    kept: bytearray = field(default_factory=bytearray)
    is_over: bool = False

    def read_available(self) -> None:
        """Read what is there, without blocking."""
        while not self.pipe.closed and (piece := self.pipe.read(_READ_BYTES)) is not None:
            if not piece:
                self.pipe.close()
            room = self.limit - len(self.kept)
            self.is_over |= len(piece) > room
            self.kept += piece[:room]
            if self.is_over:
                return

    @property
    def text(self) -> str:
        return self.kept.decode("utf-8", errors="replace")


class ProgramJob:
    """A program with all its descriptors; `descriptors` are sent to the zygote and then closed here."""

    def __init__(self, number: int, source: str, stdin: str, limits: ProgramLimits, has_channel: bool) -> None:
        self.number = number
        self.limits = limits
        self.deadline = time.monotonic() + limits.wall + _GRACE_SECONDS
        """When the zygote, which should have ended the program before, has failed."""
        self.outcome: ProgramOutcome | None = None
        self.broken = ""
        """Why the sandbox failed; empty while it has not."""
        self.is_kill_sent = False
        self.awaited_s = 0.0
        """How long its owner has waited for it."""
        self.look_at = LOOK_SECONDS
        """The `awaited_s` at which to look next."""
        self._last_look = (0.0, 0.0)
        """`awaited_s` and its CPU time at the last look."""
        self._slept_s = 0.0
        self.outgoing = bytearray()
        self.incoming = bytearray()
        self.is_channel_at_end = False
        self.channel: socket.socket | None = None
        self.descriptors: list[int] = []
        self.outputs: list[Output] = []
        try:
            for text in (source, stdin):
                self.descriptors.append(_sealed_file(text))
            for _ in range(2):
                reader, writer = os.pipe()
                self.descriptors.append(writer)
                self.outputs.append(Output(FileIO(reader), limits.output_bytes))
                os.set_blocking(reader, False)
            if has_channel:
                self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
                self.descriptors.append(theirs.detach())
                self.channel.setblocking(False)
        except BaseException:
            self.release()
            raise

    def close_sent_descriptors(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []

    def release(self) -> None:
        """Close everything."""
        self.close_sent_descriptors()
        for output in self.outputs:
            output.pipe.close()
        if self.channel is not None:
            self.channel.close()

    def look(self, cpu_seconds: float) -> None:
        """Take note of its CPU time so far."""
        awaited, used = self.awaited_s - self._last_look[0], cpu_seconds - self._last_look[1]
        if used < _LEAST_SHARE * awaited:
            # A longer time means that this process, and perhaps all of them, did not run.
            self._slept_s += min(awaited, 2 * LOOK_SECONDS)
        self._last_look = (self.awaited_s, cpu_seconds)

    @property
    def is_asleep(self) -> bool:
        return self._slept_s > self.limits.sleep_seconds

    @property
    def is_over_output(self) -> bool:
        return any(output.is_over for output in self.outputs)

    @property
    def is_over(self) -> bool:
        return self.outcome is not None or bool(self.broken)

    def register(self, poller: select.poll, is_listening: bool) -> None:
        """Register what `exchange` waits for."""
        for output in self.outputs:
            if not output.pipe.closed:
                poller.register(output.pipe, select.POLLIN)
        reading = select.POLLIN if is_listening and not self.is_channel_at_end else 0
        writing = select.POLLOUT if self.outgoing else 0
        if self.channel is not None and (reading or writing):
            poller.register(self.channel, reading | writing)

    def exchange(self, is_listening: bool) -> None:
        """Read output, send queued messages and, for a listener, read a message, without blocking."""
        for output in self.outputs:
            output.read_available()
        if self.channel is not None:
            self.write_channel()
            if is_listening:
                self.read_channel()

    def write_channel(self) -> None:
        """Send as much as the program accepts now."""
        assert self.channel is not None
        try:
            while self.outgoing:
                del self.outgoing[: self.channel.send(self.outgoing)]
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.ECONNRESET):
                raise
            self.outgoing.clear()  # nobody reads any more; the reader learns how it ended

    def read_channel(self) -> None:
        """Read at most one message: the rest of a flood waits in the kernel's buffer."""
        assert self.channel is not None
        while not self.is_channel_at_end and not self.has_message and not self.has_oversized_message:
            try:
                piece = self.channel.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except ConnectionResetError:
                piece = b""
            self.is_channel_at_end = not piece
            self.incoming += piece

    def _announced_bytes(self) -> int:
        """Return the length of the first message; -1 before its header is complete."""
        return int(wire.FRAME.unpack_from(self.incoming)[0]) if len(self.incoming) >= wire.FRAME.size else -1

    @property
    def has_message(self) -> bool:
        return 0 <= self._announced_bytes() <= len(self.incoming) - wire.FRAME.size

    @property
    def has_oversized_message(self) -> bool:
        return self._announced_bytes() > wire.MAX_MESSAGE_BYTES

    def take_message(self) -> bytes:
        end = wire.FRAME.size + self._announced_bytes()
        message = bytes(self.incoming[wire.FRAME.size : end])
        del self.incoming[:end]
        return message

    def end(self, status: int, seconds: float, cause: wire.Cause, peak_bytes: int) -> None:
        """Take the zygote's report: nothing more is written, so the pipes hold the complete output."""
        for output in self.outputs:
            output.read_available()
            output.pipe.close()
        if cause == wire.Cause.SETUP:
            self.broken = f"a program's process could not be set up: {self.outputs[1].text.strip()[-500:] or 'no fork'}"
            return
        code = os.waitstatus_to_exitcode(status)
        kind, detail = self._judge(code, seconds, cause, peak_bytes)
        exit_code = code if kind in (ProgramStatus.OK, ProgramStatus.FAILED) else None
        stdout, stderr = (output.text for output in self.outputs)
        self.outcome = ProgramOutcome(kind, stdout, stderr, seconds, exit_code, detail)

    def _judge(self, code: int, seconds: float, cause: wire.Cause, peak_bytes: int) -> tuple[ProgramStatus, str]:
        """Return the status and its reason. `code` is the exit code, or the negative number of the signal."""
        limits = self.limits
        if self.is_over_output:
            names = zip(("stdout", "stderr"), self.outputs, strict=True)
            which = " and ".join(name for name, output in names if output.is_over)
            return ProgramStatus.OUTPUT_LIMIT, f"wrote more than {limits.output_bytes} bytes to {which}"
        if self.has_oversized_message:
            return ProgramStatus.OUTPUT_LIMIT, f"announced a message of more than {wire.MAX_MESSAGE_BYTES} bytes"
        # Decided by the time itself, so that it does not matter whether it ended before we killed it.
        if cause == wire.Cause.CPU or seconds > limits.seconds:
            return ProgramStatus.TIMED_OUT, f"used more than {limits.seconds:g} s of CPU time"
        if cause == wire.Cause.WALL:
            return ProgramStatus.TIMED_OUT, f"was still running after {limits.wall:g} s"
        if self.is_asleep:
            return ProgramStatus.TIMED_OUT, f"slept for more than {limits.sleep_seconds:g} s"
        if cause == wire.Cause.OWNER:
            return ProgramStatus.KILLED, "closed by its owner"
        if code < 0:
            name = signal_name(-code)
            if -code in _CRASHES_WITHOUT_MEMORY and peak_bytes > 0.9 * limits.memory_mb * 2**20:
                return ProgramStatus.OUT_OF_MEMORY, f"crashed ({name}) with its {limits.memory_mb} MiB used up"
            return ProgramStatus.KILLED, f"killed by {name}"
        if code == 0:
            return ProgramStatus.OK, "exit code 0"
        if code == wire.EXIT_MEMORY:
            return ProgramStatus.OUT_OF_MEMORY, f"needed more than {limits.memory_mb} MiB"
        return ProgramStatus.FAILED, f"exit code {code}"


def _sealed_file(text: str) -> int:
    """Return an unchangeable file in memory that holds `text`, positioned at its start."""
    descriptor = os.memfd_create("text", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            # A lone surrogate has no UTF-8; let the program's compiler refuse it.
            file.write(text.encode("utf-8", "surrogatepass"))
        os.lseek(descriptor, 0, os.SEEK_SET)
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
