"""A sandbox for untrusted Python programs: no network, only the standard library's files, no other process.

    with Sandbox() as sandbox:
        outcome = sandbox.run("print(int(input()) + 1)", stdin="41")        # Outcome(status="ok", stdout="42\\n", ...)
        with sandbox.open(harness) as session:                              # a program with a channel
            session.send(b"...")
            answer = session.receive()

A warm interpreter (the zygote) isolates itself once; each program is a fork of it, 4 ms each. Linux on x86_64 and
aarch64, no root, no packages. `isolation` is "auto" (the first of the next two that a test program confirms),
"namespaces", "landlock", or a phrase that spells out what it means to have none. "landlock:1" uses no
more than version 1 of landlock, as if the kernel were that old.

The channel of a session is a stream socket on descriptor 3 of the program. A message, either way, is its length as 4
bytes, big-endian, and then its bytes; at most 4 MiB. `os.read` and `os.write` on it may move fewer bytes than asked
for. Limits count over the whole session. Messages arrive in order, also those sent just before the program ended.

Covered, in both isolations, as root and as a plain user (the attacks are in tests/unit/sandbox/attacks.py):
- time: CPU time is limited, read from outside the program. So is the time that it sleeps while its owner waits for it,
  and the wall-clock time. SIGKILL ends it, so signals that a program handles or ignores do not matter.
- memory, stack, descriptors, output and messages: each has a limit, and none can fill the owner's memory.
- no fork, thread, exec, signal, ptrace, socket, shared memory, pipe or namespace: refused by an allow-list of system
  calls (seccomp), also for raw calls through ctypes. 32-bit calls kill the program.
- files: the standard library, the system's shared libraries and time zones can be read, and /dev/null written. Nothing
  else: not /proc, the environment, installed packages, or the owner's open files.
- between programs: each starts from the same state (also of `random` and string hashes). A program's text, input and
  messages bypass the zygote, so later programs cannot find them in its memory.
- the end: programs and zygote end with the owner, however it ends. A zygote that dies or hangs raises `SandboxBroken`,
  which is never a wrong answer, and the next call starts a new one.

Not covered:
- bugs of the kernel and the processor, and side channels (timing, caches, `stat`). With "landlock" the existence and
  size of any file, the machine's name and real process numbers are visible; "namespaces" hides them.
- load: a program competes for the processor. Memory is limited per program, not in total.
- truth: everything a program writes, sends or exits with may be forged by the code under test. Never accept an exit
  code or a message as proof, and never hand the program what it must not know.
- programs that need threads, subprocesses, asyncio, temporary files, installed packages such as numpy, the host's time
  zone, or Python's own shutdown (`__del__` of objects in a cycle): they fail here.
- time, `os.urandom` and addresses of objects, which are real and so differ between runs.
- systems other than Linux (5.12 for namespaces, 5.13 for landlock), processors other than x86_64 and aarch64.
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
