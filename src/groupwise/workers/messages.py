"""What caller, supervisor and worker say to each other: frames of 4 bytes of length and a body, over stream sockets.

caller → supervisor   setup     pickle of (sys.path, number of workers, Limits, pickle of the function)
caller → supervisor   job       JOB (id, number of items), pickle of (shared, items)
supervisor → worker   job       SHARE (id, first item to do, end), the same pickle
worker → supervisor   results   SHARE, an ENDING (outcome, CPU seconds) per item, JSON list of values or reasons
supervisor → caller   results   the same; before the first one: READY, or the reason why there is no pool
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

LENGTH = struct.Struct("<I")
JOB = struct.Struct("<II")
SHARE = struct.Struct("<III")
ENDING = struct.Struct("<Bd")
READY = b"ready"
MAX_FRAME_BYTES = 1 << 30
MAX_VALUE_CHARS = 1 << 20
"""Of a value as JSON: it is a score, not a document; a longer one is an error of that item."""


class Outcome(IntEnum):
    DONE = 0
    RAISED = 1
    TIMED_OUT = 2
    DIED = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one item."""

    seconds: float = 5.0
    """CPU time."""
    wall_seconds: float = 60.0
    """Time on the clock: for what sleeps or waits."""
    memory_mb: int = 4096
    """Address space on top of what the process has when it starts."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one item."""

    outcome: Outcome
    value: Any
    """What the function returned, by way of JSON; None where it did not."""
    detail: str
    """Why there is no value."""
    seconds: float
    """CPU time."""


class BadFrame(ValueError):
    """The other side wrote something that is not a frame."""


class Channel:
    """Frames over a socket that never blocks: what cannot be sent yet waits here."""

    def __init__(self, connection: socket.socket, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.is_closed = False
        """The other side is gone; frames that it sent before were still handed out."""
        self._max_frame_bytes = max_frame_bytes
        self._incoming = bytearray()
        self._outgoing = bytearray()

    @property
    def has_outgoing(self) -> bool:
        return bool(self._outgoing)

    def send(self, *parts: bytes) -> None:
        self.put(*parts)
        self.flush()

    def put(self, *parts: bytes) -> None:
        """A frame that goes with the next `flush`."""
        self._outgoing += LENGTH.pack(sum(map(len, parts)))
        for part in parts:
            self._outgoing += part

    def flush(self) -> None:
        while self._outgoing:
            try:
                sent = self.socket.send(self._outgoing)
            except BlockingIOError:
                return
            except OSError:
                # Nobody reads any more, but what they wrote before is still to be read: `receive` finds the end.
                self._outgoing.clear()
                return
            del self._outgoing[:sent]

    def receive(self) -> list[bytes]:
        """Every complete frame that is there."""
        while not self.is_closed:
            try:
                data = self.socket.recv(1 << 18)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self.is_closed = not data
            self._incoming += data
            if len(data) < 1 << 18:
                break
        return self._take_frames()

    def _take_frames(self) -> list[bytes]:
        frames, position, end = [], 0, len(self._incoming)
        while end - position >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._incoming, position)
            if length > self._max_frame_bytes:
                raise BadFrame(f"a frame of {length} bytes")
            start = position + LENGTH.size
            if end - start < length:
                break
            frames.append(bytes(self._incoming[start : start + length]))
            position = start + length
        del self._incoming[:position]
        return frames
