"""Messages between owner and zygote, over a socket that keeps message boundaries (SOCK_SEQPACKET).

    zygote → owner   READY, or the step that was refused, in words, and the end
    owner → zygote   START with the program's descriptors, any number of KILL and CLOCK
    zygote → owner   one REPORT for each START when the program has ended, and one for each CLOCK before that

Everything has a fixed size. A program's text, input and messages travel in its own descriptors and never pass through
the zygote, so no program can find another's in the memory that it is forked from.
"""

from __future__ import annotations

import struct
from enum import IntEnum

READY = b"ready"

START = struct.Struct("!cQddQ")
"""b"S", job, CPU seconds, wall seconds, bytes of memory. Its descriptors: source, stdin, stdout, stderr and, for a
session, the channel."""
REQUEST = struct.Struct("!cQ")
"""b"K" for KILL or b"C" for CLOCK, job."""
REPORT = struct.Struct("!QidiQ")
"""Job, wait status, CPU seconds, a Cause, highest resident memory in bytes."""

MAX_REQUEST_BYTES = 64
MAX_REPLY_BYTES = 4096
MAX_DESCRIPTORS = 5

FRAME = struct.Struct("!I")
"""Header of a message on a session's channel: the number of bytes that follow."""
MAX_MESSAGE_BYTES = 4 << 20
CHANNEL_DESCRIPTOR = 3

EXIT_MEMORY = 250
"""Exit code after an uncaught MemoryError."""


class Cause(IntEnum):
    """Why a program ended."""

    ITSELF = 0
    CPU = 1
    WALL = 2
    OWNER = 3
    SETUP = 4
    """It never started: the process could not be created or locked down."""
    RUNNING = 5
    """It has not ended: the CPU seconds so far."""
