"""An allow-list of system calls, compiled to the kernel's filter machine (classic BPF).

Contract: `build_filter(architecture)` returns the bytes of the filter. Calls that are not listed fail with EPERM, also
in their x32 form; calls of a foreign architecture (32-bit calls of a 64-bit process) kill the process. The list covers
what a single-threaded interpreter needs to compute, wait, and read files that other layers allow; nothing that creates
processes, threads, sockets, shared memory or files, affects another process, or changes the file system.

Not covered: arguments behind pointers, which a filter cannot read; `openat2` and `clone3` are refused entirely.
"""

from __future__ import annotations

import errno
import struct

# Name, number on x86_64, number on aarch64; "-" where the architecture has no such call.
_CALLS = """
# Open files: reading, writing, and asking about them.
read 0 63 | write 1 64 | readv 19 65 | writev 20 66 | pread64 17 67 | lseek 8 62 | close 3 57 | dup 32 23 | dup2 33 -
dup3 292 24 | poll 7 - | ppoll 271 73 | select 23 - | pselect6 270 72
# Files by name. Mounts or landlock decide what may be read; nothing may be written.
stat 4 - | lstat 6 - | fstat 5 80 | newfstatat 262 79 | statx 332 291 | access 21 - | faccessat 269 48
faccessat2 439 439 | getdents64 217 61 | getcwd 79 17 | chdir 80 49
# Memory, below the limit on the address space.
mmap 9 222 | mprotect 10 226 | munmap 11 215 | mremap 25 216 | madvise 28 233 | brk 12 214
# Its own signals, locks and end.
rt_sigaction 13 134 | rt_sigprocmask 14 135 | rt_sigreturn 15 139 | rt_sigpending 127 136 | rt_sigtimedwait 128 137
rt_sigsuspend 130 133 | sigaltstack 131 132 | futex 202 98 | set_robust_list 273 99 | setitimer 38 103
getitimer 36 102 | alarm 37 - | pause 34 - | restart_syscall 219 128 | exit 60 93 | exit_group 231 94
# Time and randomness.
clock_gettime 228 113 | clock_getres 229 114 | clock_nanosleep 230 115 | nanosleep 35 101 | gettimeofday 96 169
time 201 - | getrandom 318 278 | sched_yield 24 124
# Its identity.
getpid 39 172 | getppid 110 173 | gettid 186 178 | getuid 102 174 | geteuid 107 175 | getgid 104 176 | getegid 108 177
getresuid 118 148 | getresgid 120 150 | getgroups 115 158 | getpgrp 111 - | getpgid 121 155 | getsid 124 156
uname 63 160 | getcpu 309 168 | sched_getaffinity 204 123 | getrusage 98 165 | times 100 153 | getrlimit 97 163
"""


_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_JUMP_EQUAL, _JUMP_AT_LEAST = 0x15, 0x35
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
_LOAD_ARGUMENT = [(_LOAD, 0, 0, _ARGUMENTS_OFFSET + 8 * index) for index in range(6)]
"""Load the low half: the arguments here are 32 bits wide to the kernel, and both architectures are little-endian."""
RETURN_ALLOW = 0x7FFF0000
RETURN_REFUSE = 0x00050000 | errno.EPERM
RETURN_KILL = 0x80000000
_X32_BIT = 0x40000000
_FOR_READING = 0o2000000 | 0o4000  # O_CLOEXEC, O_NONBLOCK
_FOR_READING_BY_COLUMN = (0o700000, 0o540000)  # O_DIRECTORY, O_NOFOLLOW, O_LARGEFILE
_FOR_WRITING = 0o100 | 0o1000 | 0o2000  # O_CREAT, O_TRUNC, O_APPEND, as `open(os.devnull, "w")` gives them
_WRITING_MODES = (0o1, 0o2)  # O_WRONLY, O_RDWR; mode 3 opens neither way, which landlock takes for harmless

ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of the tables, and the kernel's number (AUDIT_ARCH)."""

Numbers = tuple[int | None, int | None]
Instruction = tuple[int, int, int, int]
"""Code, jump offset if true, jump offset if false, constant."""


def _read_calls(text: str) -> dict[str, Numbers]:
    entries = [entry.split() for line in text.splitlines() if line[:1] != "#" for entry in line.split("|") if entry]
    return {name: (None if one == "-" else int(one), None if two == "-" else int(two)) for name, one, two in entries}


def _if_argument_is(index: int, *values: int) -> list[Instruction]:
    tests = [(_JUMP_EQUAL, len(values) - position, 0, value) for position, value in enumerate(values)]
    return [_LOAD_ARGUMENT[index], *tests, (_RETURN, 0, 0, RETURN_REFUSE), (_RETURN, 0, 0, RETURN_ALLOW)]


def _if_flags_are_needed(index: int, column: int) -> list[Instruction]:
    """Allow only the ways to open a file that Python's `open` and `os.listdir` use.

    Landlock before version 3 does not know truncation, and no version looks at what is opened neither to read nor to
    write.
    """
    reading = _FOR_READING | _FOR_READING_BY_COLUMN[column]
    return [
        _LOAD_ARGUMENT[index],
        (_AND, 0, 0, ~reading & 0xFFFFFFFF),
        (_JUMP_EQUAL, 5, 0, 0),
        _LOAD_ARGUMENT[index],
        (_AND, 0, 0, ~(reading | _FOR_WRITING) & 0xFFFFFFFF),
        (_JUMP_EQUAL, 2, 0, _WRITING_MODES[0]),
        (_JUMP_EQUAL, 1, 0, _WRITING_MODES[1]),
        (_RETURN, 0, 0, RETURN_REFUSE),
        (_RETURN, 0, 0, RETURN_ALLOW),
    ]


ALLOWED = _read_calls(_CALLS)


def conditional(column: int) -> dict[str, tuple[Numbers, list[Instruction]]]:
    """Return the calls whose arguments decide. Every body ends with a return."""
    return {
        "open": ((2, None), _if_flags_are_needed(1, column)),
        "openat": ((257, 56), _if_flags_are_needed(2, column)),
        # TCGETS, TIOCGWINSZ, FIONREAD, FIONCLEX, FIOCLEX: nothing that feeds a terminal or drives a device.
        "ioctl": ((16, 29), _if_argument_is(1, 0x5401, 0x5413, 0x541B, 0x5450, 0x5451)),
        # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC: no locks, leases, owners, seals, pipe sizes.
        "fcntl": ((72, 25), _if_argument_is(1, 0, 1, 2, 3, 4, 1030)),
        # Process 0 is the calling one.
        "prlimit64": ((302, 261), _if_argument_is(0, 0)),
    }


def build_filter(architecture: str) -> bytes:
    """Return the filter for "x86_64" or "aarch64"."""
    column, audit_number = ARCHITECTURES[architecture]
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE_OFFSET),
        (_JUMP_EQUAL, 1, 0, audit_number),
        (_RETURN, 0, 0, RETURN_KILL),
        (_LOAD, 0, 0, _NUMBER_OFFSET),
    ]
    if architecture == "x86_64":
        program += [(_JUMP_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, RETURN_REFUSE)]
    unconditional = [(numbers, [(_RETURN, 0, 0, RETURN_ALLOW)]) for numbers in ALLOWED.values()]
    for numbers, body in (*unconditional, *conditional(column).values()):
        number = numbers[column]
        if number is not None:  # any other call skips the body
            program += [(_JUMP_EQUAL, 0, len(body), number), *body]
    program.append((_RETURN, 0, 0, RETURN_REFUSE))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
