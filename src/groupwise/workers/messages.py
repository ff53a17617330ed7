"""Messages of caller, supervisor and worker: frames of a 4-byte length and a body, over stream sockets.

caller → supervisor   setup     pickle of (sys.path, number of workers, Limits, pickle of the function)
caller → supervisor   job       JOB (id, number of items), pickle of (shared, items)
supervisor → worker   job       SHARE (id, first item to do, end), the same pickle
worker → supervisor   results   SHARE, an ENDING (outcome, CPU seconds) per item, JSON list of values or reasons
supervisor → caller   results   the same; before the first: READY, or the reason why there is no pool
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

LENGTH = struct.Struct("<I")
JOB = struct.Struct("<II")
SHARE = struct.Struct("<III")
ENDING = struct.Struct("<Bd")
READY = b"ready"
MAX_FRAME_BYTES = 1 << 30
_READ_BYTES = 1 << 18


class Outcome(IntEnum):
    DONE = 0
    RAISED = 1
    TIMED_OUT = 2
    DIED = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one item."""

    seconds: float = 5.0
    """CPU time."""
    wall_seconds: float = 60.0
    """Wall-clock time, for items that sleep or wait."""
    memory_mb: int = 4096
    """Address space on top of the process's own at its start."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one item."""

    outcome: Outcome
    value: Any
    """The function's return value after a round trip through JSON; None without one."""
    detail: str
    """Why there is no value."""
    seconds: float
    """CPU time."""


class BadFrame(ValueError):
    """The other side sent something that is not a frame."""


class Channel:
    """Frames over a socket. It does not block: what cannot be sent yet is buffered."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.is_closed = False
        """The other side is gone; its earlier frames are still returned."""
        self.outgoing = bytearray()
        self._incoming = bytearray()

    def send(self, *parts: bytes | bytearray) -> None:
        self.put(*parts)
        self.flush()

    def put(self, *parts: bytes | bytearray) -> None:
        """Buffer a frame for the next `flush`."""
        self.outgoing += LENGTH.pack(sum(map(len, parts)))
        for part in parts:
            self.outgoing += part

    def flush(self) -> None:
        while self.outgoing:
            try:
                sent = self.socket.send(self.outgoing)
            except BlockingIOError:
                return
            except OSError:
                # Nobody reads any more, but earlier frames can still be read: `receive` detects the end.
                self.outgoing.clear()
                return
            del self.outgoing[:sent]

    def receive(self) -> list[bytes]:
        """Read once, so that a flood cannot hold the reader, and return every complete frame."""
        try:
            data = self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        self.is_closed = not data
        self._incoming += data
        frames, position, end = [], 0, len(self._incoming)
        while end - position >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._incoming, position)
            if length > MAX_FRAME_BYTES:
                raise BadFrame(f"a frame of {length} bytes")
            start = position + LENGTH.size
            if end - start < length:
                break
            frames.append(bytes(self._incoming[start : start + length]))
            position = start + length
        del self._incoming[:position]
        return frames


def wait_for(channels: Iterable[Channel], seconds: float | None = None) -> list[Channel]:
    """Wait until a channel has input, can send what is buffered, or is closed; return those channels."""
    by_descriptor = {channel.socket.fileno(): channel for channel in channels}
    poller = select.poll()
    for descriptor, channel in by_descriptor.items():
        poller.register(descriptor, select.POLLIN | (select.POLLOUT if channel.outgoing else 0))
    events = poller.poll(None if seconds is None else max(0.0, seconds) * 1000)
    return [by_descriptor[descriptor] for descriptor, _ in events]
