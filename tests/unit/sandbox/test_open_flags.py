"""Every access mode with every flag: no file of the host changes, also where landlock does not know truncation."""

from __future__ import annotations

import os
from itertools import combinations
from pathlib import Path

import pytest

from groupwise.sandbox import UNSAFE, ProgramLimits, ProgramStatus, Sandbox
from tests.unit.sandbox import attacks
from tests.unit.sandbox.conftest import skip_unless_offered

LIMITS = ProgramLimits(seconds=20.0, wall_seconds=60.0, output_bytes=1 << 20)
# All bits of the flags and all pairs of them, and all sets of those that make, empty or find a file.
BITS = [1 << position for position in range(6, 25)]
STRONG = [os.O_CREAT, os.O_EXCL, os.O_TRUNC, os.O_APPEND, os.O_DIRECTORY, os.O_NOFOLLOW, os.O_PATH, os.O_CLOEXEC]
FLAGS = sorted(
    {sum(some) for count in range(3) for some in combinations(BITS, count)}
    | {sum(some) for count in range(len(STRONG) + 1) for some in combinations(STRONG, count)}
    | {os.O_TMPFILE, os.O_TMPFILE | os.O_EXCL}
)

OPEN_ALL = (
    attacks.PRELUDE
    + """
def opened(number, *arguments):
    descriptor = libc.syscall(ctypes.c_long(number), *arguments)
    if descriptor >= 0:
        os.close(descriptor)
    return descriptor >= 0

reached, tried = [], 0
for path in (b"@FOLDER@/file", b"@FOLDER@/new", b"@FOLDER@"):
    for mode in @MODES@:
        for flags in @FLAGS@:
            calls = [opened(257 if is_intel else 56, -100, path, mode | flags, 0o666)]
            if is_intel:
                calls.append(opened(2, path, mode | flags, 0o666))
            how = (ctypes.c_uint64 * 3)(mode | flags, 0, 0)
            calls.append(opened(437, -100, path, how, 24))
            tried += len(calls)
            if any(calls):
                reached.append((path, mode, oct(flags)))
    if is_intel and opened(85, path, 0o666):
        reached.append((path, "creat"))
    raw("truncate", 76, 45, path, 0)
for descriptor in (0, 1, 2):
    raw("ftruncate", 77, 46, descriptor, 0)
print("tried", tried, "reached", len(reached), reached[:5])
"""
)


def open_all(sandbox: Sandbox, folder: Path, modes: tuple[int, ...]) -> str:
    """Open a file, a new file and a folder in every way; return what the program printed last."""
    folder.chmod(0o777)
    (folder / "file").write_text("untouched")
    (folder / "file").chmod(0o666)
    os.utime(folder / "file", (1, 1))
    program = OPEN_ALL.replace("@FOLDER@", str(folder)).replace("@MODES@", str(modes)).replace("@FLAGS@", str(FLAGS))
    outcome = sandbox.run(program, limits=LIMITS)
    assert outcome.status == ProgramStatus.OK, outcome
    assert "REACHED" not in outcome.stdout
    assert os.listdir(folder) == ["file"]
    assert (folder / "file").read_text() == "untouched"
    assert (folder / "file").stat().st_mtime == 1
    return outcome.stdout.splitlines()[-1]


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the host that everybody can reach and write."""
    folder = tmp_path_factory.mktemp("host")
    for parent in (folder.parent, folder.parent.parent):
        parent.chmod(0o755)
    return folder


@pytest.mark.parametrize("isolation", ["landlock:1", "landlock:2", "landlock", "namespaces"])
def test_no_way_to_open_reaches_a_file_of_the_host(isolation: str, folder: Path) -> None:
    skip_unless_offered(isolation)
    with Sandbox(isolation) as sandbox:
        assert " reached 0 " in open_all(sandbox, folder, (0, 1, 2, 3))


def test_the_filter_alone_keeps_files_that_may_be_read(folder: Path) -> None:
    """Where nothing else is in the way, what is opened for reading is neither made nor emptied."""
    with Sandbox(UNSAFE) as sandbox:
        assert " reached 0 " not in open_all(sandbox, folder, (0, 3))


@pytest.mark.parametrize("isolation", ["landlock:1", "namespaces"])
def test_what_programs_need_goes_on_working(isolation: str) -> None:
    skip_unless_offered(isolation)
    program = (
        "import os, pathlib, zoneinfo\n"
        "folder = pathlib.Path(os.__file__).parent\n"
        "assert 'import' in open(os.__file__).read() and open(os.__file__, 'rb').read(1)\n"
        "assert 'os.py' in os.listdir(folder) and list(folder.glob('json/*.py')) and list(os.walk(folder / 'json'))\n"
        "for mode in ('w', 'a', 'r+', 'w+', 'wb'):\n    open(os.devnull, mode).close()\n"
        "print('works', file=open(os.devnull, 'w'))\nprint('works')\n"
    )
    with Sandbox(isolation) as sandbox:
        assert sandbox.run(program).stdout == "works\n"
