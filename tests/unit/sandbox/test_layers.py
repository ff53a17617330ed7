"""The layers by themselves: the system-call filter on both architectures, landlock's records, the exposed paths."""

from __future__ import annotations

import functools
import re
import struct
from pathlib import Path

import pytest

from groupwise.sandbox import seccomp
from groupwise.sandbox.isolation import exposed_paths, ruleset_record, split_around

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
CONDITIONAL = {name: numbers for name, (numbers, _) in seccomp.conditional(0).items()}


def decide(architecture: str, number: int, arguments: tuple[int, ...] = (), audit: int = 0) -> int:
    """The oracle: the filter run as the kernel's manual describes it, one instruction after the other."""
    padded = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("=IIQ6Q", number, audit or ARCHITECTURES[architecture], 0, *padded)
    program = instructions(architecture)
    accumulator = position = 0
    while True:
        code, if_true, if_false, constant = program[position]
        position += 1
        if code == 0x20:
            accumulator = struct.unpack_from("=I", data, constant)[0]
        elif code == 0x54:
            accumulator &= constant
        elif code == 0x15:
            position += if_true if accumulator == constant else if_false
        elif code == 0x35:
            position += if_true if accumulator >= constant else if_false
        else:
            assert code == 0x06
            return constant


@functools.cache
def instructions(architecture: str) -> list[tuple[int, int, int, int]]:
    return list(struct.iter_unpack("=HBBI", seccomp.build_filter(architecture)))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_exactly_the_listed_calls_are_allowed(architecture: str) -> None:
    column = list(ARCHITECTURES).index(architecture)
    allowed = {pair[column] for pair in seccomp.ALLOWED.values()} - {None}
    conditional = {pair[column] for pair in CONDITIONAL.values()} - {None}
    assert not allowed & conditional
    for number in range(600):
        if number not in conditional:
            expected = seccomp.RETURN_ALLOW if number in allowed else seccomp.RETURN_REFUSE
            assert decide(architecture, number, (5, 5, 5)) == expected, number


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_arguments_decide(architecture: str) -> None:
    column = list(ARCHITECTURES).index(architecture)

    def is_allowed(name: str, *arguments: int) -> bool:
        number = CONDITIONAL[name][column]
        assert number is not None
        return decide(architecture, number, arguments) == seccomp.RETURN_ALLOW

    for command in (*range(0x100), *range(0x5400, 0x5500)):
        assert is_allowed("ioctl", 1, command) == (command in (0x5401, 0x5413, 0x541B, 0x5450, 0x5451))
    for command in range(1100):
        assert is_allowed("fcntl", 1, command) == (command in (0, 1, 2, 3, 4, 1030))
    assert is_allowed("prlimit64", 0, 7)
    assert not is_allowed("prlimit64", 1, 7)
    assert not is_allowed("ioctl", 1, 0x5412)  # TIOCSTI: typing into the terminal
    reading = 0o2004000 | (0o700000, 0o540000)[column]
    writing = 0o3100
    for flags in (*range(1 << 13), *(1 << bit | low for bit in range(12, 32) for low in range(4))):
        expected = not flags & ~reading or flags & ~(reading | writing) in (1, 2)
        assert is_allowed("openat", 0, 0, flags) == expected, oct(flags)
        if architecture == "x86_64":
            assert is_allowed("open", 0, flags) == expected, oct(flags)
    assert not is_allowed("openat", 0, 0, 0o1003)  # neither to read nor to write, and emptied


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_foreign_architectures_are_killed(architecture: str) -> None:
    for audit in (0x40000003, 0x40000028, *(set(ARCHITECTURES.values()) - {ARCHITECTURES[architecture]})):
        assert decide(architecture, 0, audit=audit) == seccomp.RETURN_KILL


def test_x32_is_refused() -> None:
    for number in (0, 39, 57, 257):
        assert decide("x86_64", 0x40000000 + number) == seccomp.RETURN_REFUSE


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_numbers_are_those_of_the_kernel(architecture: str) -> None:
    header = HEADERS[architecture]
    if not header.is_file():
        pytest.skip(f"no {header}: the kernel's headers are not installed")
    text = header.read_text()
    numbers = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)}
    numbers["newfstatat"] = numbers.get("newfstatat", numbers.get("fstatat", -1))
    column = list(ARCHITECTURES).index(architecture)
    for name, pair in {**seccomp.ALLOWED, **CONDITIONAL}.items():
        if pair[column] is not None:
            assert numbers[name] == pair[column], name
        else:
            assert name not in numbers or architecture == "aarch64"


FORBIDDEN = (
    "fork vfork clone clone3 execve execveat socket socketpair connect bind sendto sendmsg recvmsg ptrace kill "
    "tkill tgkill mount umount2 pivot_root chroot unshare setns bpf keyctl add_key request_key io_uring_setup "
    "memfd_create shmget shmat pidfd_open pidfd_send_signal pidfd_getfd process_vm_readv process_vm_writev "
    "userfaultfd perf_event_open openat2 prctl seccomp unlink unlinkat rename mkdir mkdirat symlink symlinkat "
    "link linkat chmod fchmod chown truncate ftruncate pwrite64 mknod setuid setgid capset personality pipe pipe2 "
    "readlink readlinkat name_to_handle_at open_by_handle_at "
)


def test_nothing_forbidden_is_on_the_list() -> None:
    assert not set(FORBIDDEN.split()) & (set(seccomp.ALLOWED) | set(CONDITIONAL))


def test_landlock_records_grow_with_the_version() -> None:
    lengths = [len(ruleset_record(version)) for version in range(1, 9)]
    assert lengths == [8, 8, 8, 16, 16, 24, 24, 24]
    handled = [struct.unpack_from("=Q", ruleset_record(version))[0] for version in range(1, 6)]
    assert handled == [0x1FFF, 0x3FFF, 0x7FFF, 0x7FFF, 0xFFFF]


def test_exposed_paths_are_not_the_users() -> None:
    exposed = exposed_paths()
    assert Path(re.__file__).parent.parent.as_posix() in exposed.readable or any(
        Path(re.__file__).is_relative_to(path) for path in exposed.readable
    )
    for path in ("/", "/etc", "/home", "/root", "/usr", "/tmp", str(Path.home())):
        assert path not in exposed.readable
    for one in exposed.readable:
        assert not any(one != other and Path(one).is_relative_to(other) for other in exposed.readable)


def test_split_around(tmp_path: Path) -> None:
    for name in ("a/b/hidden/x", "a/b/shown/y", "c/z"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a/file").touch()
    (tmp_path / "a/outside").symlink_to("/etc/passwd")
    whole, partial = split_around(str(tmp_path), (str(tmp_path / "a/b/hidden"),))
    assert [Path(path).relative_to(tmp_path).as_posix() for path in whole] == ["a/b/shown", "a/file", "c"]
    assert [Path(path).relative_to(tmp_path).as_posix() for path in partial] == [".", "a", "a/b"]
    assert split_around(str(tmp_path), ()) == ([str(tmp_path)], [])
