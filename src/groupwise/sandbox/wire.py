"""What owner and zygote say to each other, over a socket that keeps message boundaries (SOCK_SEQPACKET).

    zygote → owner   READY, or a JSON object {"step", "errno", "reason"} and the end
    owner → zygote   START with the program's descriptors, any number of KILL
    zygote → owner   one ENDED for each START

Everything is of fixed size, and a program's text, input and messages never pass through the zygote: they travel in
descriptors of the program's own. So no program can find another's in the memory that it is forked from.
"""

from __future__ import annotations

import struct
from enum import IntEnum

READY = b"ready"

START = struct.Struct("!cQddQ")
"""b"S", job, CPU seconds, wall seconds, bytes of memory. With these descriptors: the source, stdin, stdout, stderr and,
for a session, the channel."""
KILL = struct.Struct("!cQ")
"""b"K", job."""
ENDED = struct.Struct("!QidiQ")
"""Job, wait status, CPU seconds, a Cause, highest resident memory in bytes."""

MAX_REQUEST_BYTES = 64
MAX_REPLY_BYTES = 4096
MAX_DESCRIPTORS = 5

FRAME = struct.Struct("!I")
"""The head of a message on a session's channel: the number of bytes that follow."""
MAX_MESSAGE_BYTES = 4 << 20
CHANNEL_DESCRIPTOR = 3

EXIT_MEMORY = 250
"""What a program exits with after an uncaught MemoryError."""


class Cause(IntEnum):
    """Why the zygote ended a program, if it did."""

    ITSELF = 0
    CPU = 1
    WALL = 2
    OWNER = 3
    SETUP = 4
    """It never began: the process could not be made or locked down."""
