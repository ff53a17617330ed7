"""What a program finds and how its end is told: the same in both isolations."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from groupwise.sandbox import ProgramLimits, ProgramStatus, Sandbox
from groupwise.sandbox.job import ProgramJob


@pytest.fixture(scope="module")
def sandbox(isolation: str) -> Iterator[Sandbox]:
    with Sandbox(isolation) as made:
        yield made
        assert made.isolation == isolation


def test_input_and_output(sandbox: Sandbox) -> None:
    outcome = sandbox.run("import sys\nprint(input())\nprint(sys.stdin.read(), file=sys.stderr)", stdin="é\nrest\n…")
    assert (outcome.status, outcome.exit_code) == (ProgramStatus.OK, 0)
    assert (outcome.stdout, outcome.stderr) == ("é\n", "rest\n…\n")
    assert 0 < outcome.seconds < 10


def test_is_main_with_the_whole_standard_library(sandbox: Sandbox) -> None:
    source = """
import sys, __main__
import asyncio, bz2, concurrent.futures, ctypes, difflib, email, graphlib, http.client, importlib.metadata, lzma
import multiprocessing, pickle, sqlite3, ssl, xml.dom.minidom, zlib, zoneinfo
class A: pass
assert type(pickle.loads(pickle.dumps(A()))) is A
assert sqlite3.connect(":memory:").execute("select 1 + 1").fetchone() == (2,)
print(__name__, sys.argv, __main__.A is A, dir()[:4])
"""
    outcome = sandbox.run(source)
    assert outcome.status == ProgramStatus.OK, outcome.stderr
    assert outcome.stdout.startswith("__main__ ['main.py'] True ['A', '__builtins__', '__doc__', '__loader__']")


def test_future_imports_of_the_sandbox_do_not_leak(sandbox: Sandbox) -> None:
    assert sandbox.run("def f(x: 1 + 1): pass\nprint(f.__annotations__)").stdout == "{'x': 2}\n"


ENDS = {
    "pass": (ProgramStatus.OK, 0),
    "import sys; sys.exit()": (ProgramStatus.OK, 0),
    "import sys; sys.exit(None)": (ProgramStatus.OK, 0),
    "import sys; sys.exit(True)": (ProgramStatus.FAILED, 1),
    "import sys; sys.exit(7)": (ProgramStatus.FAILED, 7),
    "import sys; sys.exit(-1)": (ProgramStatus.FAILED, 255),
    "import sys; sys.exit('text')": (ProgramStatus.FAILED, 1),
    "import sys; sys.exit([])": (ProgramStatus.FAILED, 1),
    "1 / 0": (ProgramStatus.FAILED, 1),
    "raise KeyboardInterrupt": (ProgramStatus.FAILED, 1),
    "import os; os._exit(9)": (ProgramStatus.FAILED, 9),
    "def": (ProgramStatus.FAILED, 1),
    "return 1": (ProgramStatus.FAILED, 1),
    "x = '\0'": (ProgramStatus.FAILED, 1),
    "x = '\ud800'": (ProgramStatus.FAILED, 1),
    "raise MemoryError": (ProgramStatus.OUT_OF_MEMORY, None),
    "import ctypes; ctypes.string_at(1)": (ProgramStatus.KILLED, None),
}


@pytest.mark.parametrize("source", ENDS, ids=repr)
def test_ends(sandbox: Sandbox, source: str) -> None:
    outcome = sandbox.run(source)
    assert (outcome.status, outcome.exit_code) == ENDS[source], outcome


ODD = """
import atexit, io, os, sys
kept = open(1, "w", closefd=False)
kept.write("kept by an open file\\n")
class Wrapper(io.StringIO):
    def flush(self):
        os.write(1, self.getvalue().encode())
        self.truncate(0), self.seek(0)
atexit.register(lambda: print("at exit"))
sys.stdout = Wrapper()
print("through a wrapper")
"""


def test_all_that_was_written_is_there_at_the_end(sandbox: Sandbox) -> None:
    assert sorted(sandbox.run(ODD).stdout.splitlines()) == ["at exit", "kept by an open file", "through a wrapper"]


def test_traceback_is_that_of_the_program(sandbox: Sandbox) -> None:
    stderr = sandbox.run("def f():\n    raise ValueError('é\\ud800')\nf()").stderr
    lines = stderr.splitlines()
    assert lines[:3] == [
        "Traceback (most recent call last):",
        '  File "main.py", line 3, in <module>',
        '  File "main.py", line 2, in f',
    ]
    assert lines[-1] == "ValueError: é\\ud800"
    assert "groupwise" not in stderr


def test_large_sources_and_inputs(sandbox: Sandbox) -> None:
    source = "x = 0\n" + "x += 1\n" * 150_000 + "print(x, len(input()))"
    outcome = sandbox.run(source, stdin="y" * 3_000_000, limits=ProgramLimits(seconds=20, memory_mb=1024))
    assert outcome.stdout == "150000 3000000\n", outcome


@settings(max_examples=60, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(), max_size=200))
def test_any_text_is_an_outcome(sandbox: Sandbox, text: str) -> None:
    outcome = sandbox.run(text, stdin=text)
    assert outcome.status in (ProgramStatus.OK, ProgramStatus.FAILED)
    assert sandbox.run("print(6 * 7)").stdout == "42\n"


def test_input_that_has_no_encoding(sandbox: Sandbox) -> None:
    assert sandbox.run("print(len(input()))", stdin="\ud800\0").status == ProgramStatus.OK


def test_each_program_starts_from_the_same_state(sandbox: Sandbox) -> None:
    source = "import random, os\nprint(random.random(), {'a', 'b', 'c', 'd'}, hash('x'), dict(os.environ), os.getcwd())"
    outputs = {sandbox.run(source).stdout for _ in range(3)}
    with Sandbox(sandbox.isolation) as other:
        outputs.add(other.run(source).stdout)
    assert len(outputs) == 1
    assert "{} /\n" in outputs.pop()
    sandbox.run("import math, sys\nmath.pi = 3\nsys.path.clear()\nx = 1")
    assert sandbox.run("import math\nprint(math.pi > 3.1, 'x' in dir())").stdout == "True False\n"


def test_cpu_limit_counts_cpu_and_wall_limit_the_clock(sandbox: Sandbox) -> None:
    limits = ProgramLimits(seconds=0.3, wall_seconds=30)
    assert sandbox.run("import time\ntime.sleep(0.5)\nprint('awake')", limits=limits).stdout == "awake\n"
    busy = sandbox.run("while True: pass", limits=limits)
    assert busy.status == ProgramStatus.TIMED_OUT
    assert 0.3 <= busy.seconds < 10
    asleep = sandbox.run("import time\ntime.sleep(9)", limits=ProgramLimits(seconds=0.2, wall_seconds=0.3))
    assert (asleep.status, asleep.detail) == (ProgramStatus.TIMED_OUT, "was still running after 0.3 s")


def test_sleep_is_limited_and_work_is_not_sleep(sandbox: Sandbox) -> None:
    limits = ProgramLimits(seconds=9, sleep_seconds=0.3)
    naps = sandbox.run("import time\nfor _ in range(10**6): time.sleep(0.05)", limits=limits)
    assert (naps.status, naps.detail) == (ProgramStatus.TIMED_OUT, "slept for more than 0.3 s")
    work = "import time\nwhile time.process_time() < 0.5: pass\ntime.sleep(0.1)\nprint('done')"
    assert sandbox.run(work, limits=limits).stdout == "done\n"


def test_what_counts_as_sleep() -> None:
    job = ProgramJob(1, "", "", ProgramLimits(sleep_seconds=2.0), has_channel=False)
    for number in range(1, 101):  # a hundredth of a processor, on a busy machine
        job.awaited_s = number * 0.25
        job.look(number * 0.0026)
    assert not job.is_asleep
    job.awaited_s += 3600.0  # nobody ran
    job.look(0.26)
    assert not job.is_asleep
    for _ in range(7):
        job.awaited_s += 0.25
        job.look(0.26)
    assert job.is_asleep
    job.release()


def test_memory_limit(sandbox: Sandbox) -> None:
    source = "x = bytearray({} << 20)\nprint(len(x) >> 20)"
    limits = ProgramLimits(memory_mb=128)
    assert sandbox.run(source.format(110), limits=limits).stdout == "110\n"
    assert sandbox.run(source.format(129), limits=limits).status == ProgramStatus.OUT_OF_MEMORY
    swallowed = "try:\n    x = bytearray(1 << 30)\nexcept MemoryError:\n    print('none left')"
    assert sandbox.run(swallowed, limits=limits).stdout == "none left\n"
    assert sandbox.run("x = [[] for _ in range(10 ** 9)]", limits=limits).status == ProgramStatus.OUT_OF_MEMORY


def test_deep_recursion_has_a_stack(sandbox: Sandbox) -> None:
    source = "import sys\nsys.setrecursionlimit(10 ** 6)\ndef f(n):\n    return n and 1 + f(n - 1)\nprint(f(100_000))"
    assert sandbox.run(source).stdout == "100000\n"


@pytest.mark.parametrize("stream", [1, 2])
def test_output_limit_is_exact(sandbox: Sandbox, stream: int) -> None:
    limits = ProgramLimits(output_bytes=1000)
    full = sandbox.run(f"import os\nos.write({stream}, b'x' * 1000)", limits=limits)
    over = sandbox.run(f"import os\nos.write({stream}, b'x' * 1001)", limits=limits)
    assert (full.status, len(full.stdout + full.stderr)) == (ProgramStatus.OK, 1000)
    assert (over.status, len(over.stdout + over.stderr)) == (ProgramStatus.OUTPUT_LIMIT, 1000)
    assert ("stdout", "stderr")[stream - 1] in over.detail


def test_bytes_that_are_not_text(sandbox: Sandbox) -> None:
    outcome = sandbox.run("import os\nos.write(1, b'a\\xff\\0')\nprint('\\udcff')")
    assert outcome.stdout == "a\ufffd\0\ufffd\n"


def test_what_a_program_may_still_do(sandbox: Sandbox) -> None:
    source = """
import os, signal, sys, tempfile, time
with open(os.devnull, "w") as file: file.write("x")
print(os.listdir(os.path.dirname(os.__file__)) != [], time.tzname, os.cpu_count() is not None)
signal.signal(signal.SIGALRM, lambda *_: print("alarm"))
signal.setitimer(signal.ITIMER_REAL, 0.01)
time.sleep(0.05)
print(len(os.urandom(8)), open(0).read())
"""
    assert sandbox.run(source, stdin="in").stdout == "True ('UTC', 'UTC') True\nalarm\n8 in\n"


def test_answers_are_those_of_a_bare_interpreter(sandbox: Sandbox) -> None:
    """The oracle: the same programs by `python` itself."""
    programs = [
        "print(sorted({3, 1, 2}))",
        "import sys; print(sys.stdin.readlines())",
        "import sys; sys.exit('é')",
        ODD,
    ]
    for source in programs:
        bare = subprocess.run(
            [sys.executable, "-X", "utf8", "-c", source], input="a\nb", capture_output=True, text=True
        )
        outcome = sandbox.run(source, stdin="a\nb")
        assert outcome.exit_code == bare.returncode
        assert sorted(outcome.stdout.splitlines()) == sorted(bare.stdout.splitlines())
        assert outcome.stderr == bare.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [("seconds", 0), ("memory_mb", 0), ("output_bytes", -1), ("wall_seconds", -1.0), ("seconds", float("nan"))],
)
def test_limits_are_checked(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"Limits\.{name} = {value}: give a number from"):
        ProgramLimits(**{name: value})


def test_isolation_is_checked() -> None:
    with pytest.raises(
        ValueError, match=r"isolation = 'docker': give one of 'auto', 'namespaces', 'landlock', 'none: "
    ):
        Sandbox("docker")
