"""Runs untrusted Python programs: no network, no files but the standard library, no other process, bounded in all.

    with Sandbox() as sandbox:
        outcome = sandbox.run("print(int(input()) + 1)", stdin="41")        # Outcome(status="ok", stdout="42\\n", ...)
        with sandbox.open(harness) as session:                              # a program that is talked to
            session.send(b"...")
            answer = session.receive()

A warm interpreter (the zygote) isolates itself once; each program is a fork of it, 4 ms each. Linux on x86_64 and
aarch64, no root, no packages. `isolation` is "auto" (the first of the two that this machine really offers, seen by
running a program), "namespaces", "landlock", or a phrase that says what it means to do without.

The channel of a session is a stream socket on descriptor 3 of the program. A message, either way, is its length as 4
bytes, big-endian, and then its bytes; at most 4 MiB. The program uses `os.read` and `os.write` on it, which may move
fewer bytes than asked for. Limits count over the whole session. Messages come in the order they were sent, and those
sent before the program ended are still received.

Covered, in both isolations, as root and as a plain user (the corpus is in tests/unit/sandbox/attacks.py):
- time: CPU time is limited, read from outside the program; a wall limit ends what sleeps or stops. Signals that the
  program handles or ignores do not matter, it is ended by SIGKILL.
- memory, stack, descriptors, output and messages: each has a limit, and none fills the owner's memory.
- no fork, thread, exec, signal, ptrace, socket, shared memory, pipe or namespace: refused by an allow-list of system
  calls (seccomp), so also to raw calls through ctypes. 32-bit calls kill the program.
- files: the standard library, the system's shared libraries and time zones can be read, /dev/null written, and that is
  all. Not /proc, not the environment, not installed packages, not what the owner has open.
- between programs: each starts from the same state (also of `random` and of string hashes). A program's text, input
  and messages go past the zygote, so that no later program finds them in its memory.
- the end: programs and zygote end with the owner, however that ends; a zygote that dies or hangs is `SandboxBroken`,
  which is nobody's wrong answer, and the next call starts another.

Not covered:
- faults of the kernel and of the processor, and side channels (timing, caches, what `stat` says). With "landlock" the
  existence and size of any file, the machine's name and real process numbers can be asked for; "namespaces" hides them.
- load: a program competes for the processor while it runs. Memory is limited per program, not over all.
- what the program says. Everything it writes, sends or exits with may be forged, by the very code under test: never
  take an exit code or a message as proof, and never hand it what it must not know.
- programs that need threads, subprocesses, asyncio, temporary files, numpy or any installed package, a time zone of the
  host, or Python's own end (`__del__` of what is in a cycle): they fail here.
- time, `os.urandom` and addresses of objects are real, hence not the same each time.
- other systems than Linux (5.12 for namespaces, 5.13 for landlock), other processors than x86_64 and aarch64.
"""

from groupwise.sandbox.client import UNSAFE, Sandbox, Session, probe
from groupwise.sandbox.outcome import (
    ProgramLimits,
    ProgramOutcome,
    ProgramStatus,
    SandboxBroken,
    SandboxUnavailable,
    SessionEnded,
)

__all__ = [
    "UNSAFE",
    "ProgramLimits",
    "ProgramOutcome",
    "ProgramStatus",
    "Sandbox",
    "SandboxBroken",
    "SandboxUnavailable",
    "Session",
    "SessionEnded",
    "probe",
]
