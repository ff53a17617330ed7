"""Programs that are talked to: order, limits over the whole session, and what hostile ones send."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from groupwise.sandbox import ProgramLimits, ProgramStatus, Sandbox, SessionEnded
from groupwise.sandbox.wire import MAX_MESSAGE_BYTES

CHANNEL = """
import os
def read_exactly(size):
    data = b""
    while len(data) < size:
        piece = os.read(3, size - len(data))
        if not piece:
            raise SystemExit
        data += piece
    return data
def receive():
    return read_exactly(int.from_bytes(read_exactly(4), "big"))
def send(message):
    data = len(message).to_bytes(4, "big") + message
    while data:
        data = data[os.write(3, data):]
"""
ECHO = CHANNEL + "while True:\n    send(receive())\n"


@pytest.fixture(scope="module")
def sandbox(isolation: str) -> Iterator[Sandbox]:
    with Sandbox(isolation) as made:
        yield made


@pytest.fixture(autouse=True)
def _next_is_clean(sandbox: Sandbox) -> Iterator[None]:
    yield
    assert sandbox.run("print(1)").stdout == "1\n"


def test_messages_of_all_sizes(sandbox: Sandbox) -> None:
    with sandbox.open(ECHO, limits=ProgramLimits(seconds=20)) as session:
        for message in (b"", b"x", os.urandom(70_000), b"y" * MAX_MESSAGE_BYTES):
            session.send(message)
            assert session.receive() == message


def test_a_session_sleeps_only_while_its_owner_waits(sandbox: Sandbox) -> None:
    with sandbox.open(ECHO, limits=ProgramLimits(sleep_seconds=0.3)) as session:
        time.sleep(0.6)
        session.send(b"x")
        assert session.receive() == b"x"
        with pytest.raises(SessionEnded, match=r"timed_out: slept for more than 0\.3 s"):
            session.receive()


def test_messages_keep_their_order_and_outlive_the_program(sandbox: Sandbox) -> None:
    with sandbox.open(CHANNEL + "for i in range(5):\n    send(b'%d' % i)\nprint('done')") as session:
        assert [session.receive() for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
        for _ in range(2):
            with pytest.raises(SessionEnded) as caught:
                session.receive()
            assert (caught.value.outcome.status, caught.value.outcome.stdout) == (ProgramStatus.OK, "done\n")
        session.send(b"into the void")
        assert session.close() == caught.value.outcome == session.close()


def test_sending_much_to_one_that_sends_much_does_not_stall(sandbox: Sandbox) -> None:
    flood = CHANNEL + "for _ in range(3):\n    send(b'x' * 3_000_000)\nfor _ in range(3):\n    receive()\nsend(b'end')"
    with sandbox.open(flood, limits=ProgramLimits(seconds=20)) as session:
        for _ in range(3):
            session.send(b"y" * 3_000_000)
        assert [len(session.receive()) for _ in range(4)] == [3_000_000] * 3 + [3]


def test_two_at_once_relayed(sandbox: Sandbox) -> None:
    judge = CHANNEL + "for i in range(10):\n    send(b'%d' % i)\n    assert receive() == b'%d' % i\nsend(b'fine')"
    with sandbox.open(judge) as asking, sandbox.open(ECHO) as answering:
        while (question := asking.receive()) != b"fine":
            answering.send(question)
            asking.send(answering.receive())
            assert sandbox.run("print('between')").stdout == "between\n"
        assert answering.close().status == ProgramStatus.KILLED


def test_one_that_floods_while_another_is_listened_to(sandbox: Sandbox) -> None:
    with sandbox.open("print('x' * 10 ** 6)") as flooding, sandbox.open(ECHO) as other:
        other.send(b"still here")
        assert other.receive() == b"still here"
        with pytest.raises(SessionEnded) as caught:
            flooding.receive()
        assert caught.value.outcome.status == ProgramStatus.OUTPUT_LIMIT


def test_limits_count_over_the_whole_session(sandbox: Sandbox) -> None:
    step = "import time\nstart = time.process_time()\nwhile time.process_time() < start + 0.1: pass\n"
    body = (
        CHANNEL
        + "while True:\n    receive()\n"
        + "".join(f"    {line}\n" for line in step.splitlines())
        + "    send(b'')\n"
    )
    with sandbox.open(body, limits=ProgramLimits(seconds=0.35)) as session:
        for _ in range(3):
            session.send(b"")
            assert session.receive() == b""
        session.send(b"")
        with pytest.raises(SessionEnded) as caught:
            session.receive()
        assert caught.value.outcome.status == ProgramStatus.TIMED_OUT


def test_closing_tells_how_it_was(sandbox: Sandbox) -> None:
    session = sandbox.open(ECHO)
    outcome = session.close()
    assert (outcome.status, outcome.exit_code, outcome.detail) == (ProgramStatus.KILLED, None, "closed by its owner")
    for call in (session.receive, lambda: session.send(b"x")):
        with pytest.raises(ValueError, match="closed"):
            call()


HOSTILE = {
    "closes the channel and loops": ("import os\nos.close(3)\nwhile True: pass", ProgramStatus.TIMED_OUT),
    "closes the channel and sleeps": ("import os, time\nos.close(3)\ntime.sleep(99)", ProgramStatus.TIMED_OUT),
    "announces too much": ("import os\nos.write(3, b'\\xff' * 4)\nwhile True: pass", ProgramStatus.OUTPUT_LIMIT),
    "announces too much and ends": ("import os\nos.write(3, b'\\xff' * 4)", ProgramStatus.OUTPUT_LIMIT),
    "announces and does not deliver": ("import os\nos.write(3, b'\\0\\0\\0\\5ab')", ProgramStatus.OK),
    "half a head": ("import os\nos.write(3, b'\\0\\0')", ProgramStatus.OK),
    "never reads": ("while True: pass", ProgramStatus.TIMED_OUT),
    "dies": ("import ctypes\nctypes.string_at(0)", ProgramStatus.KILLED),
    "duplicates the channel": ("import os\n[os.dup(3) for _ in range(9)]\nos.close(3)\nos._exit(0)", ProgramStatus.OK),
    "passes descriptors": (
        "import socket\nsocket.send_fds(socket.socket(fileno=3), [b'x'], [0])",
        ProgramStatus.FAILED,
    ),
    "shuts it down": ("import socket\nsocket.socket(fileno=3).shutdown(2)", ProgramStatus.FAILED),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile(sandbox: Sandbox, name: str) -> None:
    source, status = HOSTILE[name]
    with sandbox.open(source, limits=ProgramLimits(seconds=0.2, wall_seconds=1.0)) as session:
        session.send(b"z" * 1_000_000)
        with pytest.raises(SessionEnded) as caught:
            session.receive()
        assert caught.value.outcome.status == status, caught.value.outcome


def test_forged_messages_are_messages(sandbox: Sandbox) -> None:
    """Whoever shares the process can speak for it: the sandbox does not claim otherwise."""
    with sandbox.open("import os\nos.write(3, b'\\0\\0\\0\\6passed' * 1000)\nos._exit(0)") as session:
        assert {session.receive() for _ in range(1000)} == {b"passed"}
        with pytest.raises(SessionEnded):
            session.receive()


def test_messages_wait_in_the_program_not_in_our_memory(sandbox: Sandbox) -> None:
    with sandbox.open(CHANNEL + "while True:\n    send(b'x' * 1000)") as session:
        for _ in range(3):
            time.sleep(0.1)  # it fills the kernel's buffer, some 200 KB, and waits
            assert len(session.receive()) == 1000
            assert len(session._job.incoming) < 70_000


def test_too_large_a_message_is_refused_here(sandbox: Sandbox) -> None:
    with (
        sandbox.open(ECHO) as session,
        pytest.raises(ValueError, match="message of 4194305 bytes: send at most 4194304"),
    ):
        session.send(b"x" * (MAX_MESSAGE_BYTES + 1))
