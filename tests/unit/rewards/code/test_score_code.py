"""Scores of programs: what passes, what fails, how much of it, and what is said about it."""

import os
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from groupwise.config.build import ConfigError
from groupwise.rewards.code.score_code import check_options, score_code, shared_sandbox
from groupwise.rewards.code.unit_tests import CodeSpec
from groupwise.sandbox import ProgramLimits, ProgramOutcome, ProgramStatus, Sandbox, SandboxBroken
from groupwise.types import Score, Verdict

Scorer = Callable[..., Score]


@pytest.fixture
def score(sandbox: Sandbox) -> Scorer:
    def run(tests: Any, completion: str, entry_point: str = "f", seconds: float = 2.0, **fields: str) -> Score:
        tests = tuple(tests) if isinstance(tests, list) else (tests,)
        spec = CodeSpec(tests, (entry_point,) if entry_point else (), **fields)
        return score_code(spec.to_text(), completion, "code/2", ProgramLimits(seconds=seconds, memory_mb=256), sandbox)

    return run


def _code(text: str) -> str:
    return f"Here it is.\n```python\n{text}\n```\nDone."


SQUARES = [
    "assert f(2) == 4",
    "assert f(3) == 9",
    "assert abs(f(0.5) - 0.25) < 1e-9",
    "for x in (5, 6):\n    assert f(x) == x * x",
]


@pytest.mark.parametrize(
    ("program", "passed"),
    [
        ("def f(x): return x * x", 4),
        ("def f(x): return 4", 1),
        ("def f(x): return 0.25", 1),
        ("def f(x): return x * x if x != 3 else 1 / 0", 3),
        ("def f(x): return x * x if x < 6 else None", 3),
        ("def f(x): return x ** 2.0", 4),
        ("def f(x): return None", 0),
        ("def g(x): return x * x", 0),
        ("def f(: pass", 0),
        ("raise ValueError", 0),
        ("def f(x): return x * x\nimport no_such_module", 0),
        ("from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\ndef f(x): return A(x).x ** 2", 4),
        ("def f(x): return x * x\nif __name__ == '__main__':\n    raise ValueError", 4),
        ("class B: pass\nclass A:\n    b: 'B'\nimport typing\ntyping.get_type_hints(A)\ndef f(x): return x * x", 4),
        ("def g(x: 1 + 1): pass\ndef f(x): return x ** g.__annotations__['x']", 4),
        ("def f(x):\n    print('x' * 100_000)\n    return x * x", 4),
    ],
)
def test_shares(score: Scorer, program: str, passed: int) -> None:
    result = score(SQUARES, _code(program))
    assert result.reward == passed / 4
    assert result.parts == {"tests": passed / 4}
    assert result.verdict is (Verdict.CORRECT if passed == 4 else Verdict.WRONG)
    assert result.detail.startswith(f"{passed} of 4 tests")
    assert result.verifier == "code/2"


@pytest.mark.parametrize(
    ("program", "detail"),
    [
        ("def f(x): return 1", "0 of 4 tests; test 1: wrong value"),
        ("def f(x): raise KeyError('k')", "test 1: raised: KeyError"),
        ("def f(x): return object()", "test 1: not plain: object is not plain data"),
        ("def f(: pass", "test 1: no code: SyntaxError"),
        ("import sys; sys.exit(0)", "test 1: raised: SystemExit"),
        ("import os; os._exit(0)", "test 1: ended: the program ended: ok"),
        ("def f(x): return x * x if x < 0.6 or x == 2 else f(x)", "2 of 4 tests; test 2: raised: RecursionError"),
        ("def f(x):\n    assert x < 5\n    return x * x", "3 of 4 tests; test 4: test: AssertionError"),
        ("class \ud800: pass", "test 1: no code: UnicodeEncodeError"),
    ],
)
def test_details_name_the_first_failure(score: Scorer, program: str, detail: str) -> None:
    assert detail in score(SQUARES, _code(program)).detail


@pytest.mark.parametrize(
    ("completion", "verdict"),
    [
        ("", Verdict.UNPARSED),
        ("The answer is x * x.", Verdict.UNPARSED),
        ("def f(x) return x * x, of course", Verdict.UNPARSED),
        ("So def f(x): return x * x", Verdict.UNPARSED),
        ("def f(x): return x * x", Verdict.CORRECT),
        ("```\ndef f(x): return x * x\n```", Verdict.CORRECT),
        ("```python\n```", Verdict.WRONG),
    ],
)
def test_completions_without_a_block(score: Scorer, completion: str, verdict: Verdict) -> None:
    assert score(SQUARES, completion).verdict is verdict


def test_a_program_that_stops_keeps_what_it_has_earned(score: Scorer) -> None:
    loops = "def f(x):\n    while x == 3: pass\n    return x * x"
    result = score(SQUARES, _code(loops), seconds=0.3)
    assert (result.reward, result.verdict) == (0.25, Verdict.WRONG)
    assert "test 2: ended: the program ended: timed_out" in result.detail
    dies = "import os\ndef f(x):\n    if x == 0.5: os._exit(0)\n    return x * x"
    assert score(SQUARES, _code(dies)).reward == 0.5


def test_a_program_that_sleeps_is_wrong(score: Scorer) -> None:
    assert score(SQUARES, _code("import time\ndef f(x): time.sleep(100)"), seconds=0.01).verdict is Verdict.WRONG


def test_a_whole_program_that_sleeps_is_not_run_again() -> None:
    sandbox = Mock(run=Mock(return_value=ProgramOutcome(ProgramStatus.TIMED_OUT, "", "", 0.0, None, "slept")))
    spec = CodeSpec(({"stdin": "1", "stdout": "1"},) * 20)
    result = score_code(spec.to_text(), _code("import time; time.sleep(99)"), "", ProgramLimits(), sandbox)
    assert (result.verdict, sandbox.run.call_count) == (Verdict.WRONG, 1)


PROMPT = '''
import math

def double(x):
    return 2 * x

def f(x):
    """Half of x."""
'''


@pytest.mark.parametrize(
    "completion",
    [
        "    return x / 2\n",
        "\n    return x / 2\n",
        _code("def f(x):\n    return double(x) / 4"),
        _code("    return math.fabs(1) * x / 2"),
        _code("from __future__ import annotations\ndef f(x: Unknown):\n    return x / 2"),
        _code("double = 0\ndef f(x):\n    return x / 2"),
        "def f(x):\n    return x / 2",
    ],
)
def test_prompts_that_are_code(score: Scorer, completion: str) -> None:
    tests = "def check(candidate):\n    for x in range(4):\n        assert candidate(double(x)) == x"
    assert score(tests, completion, preamble=PROMPT, helpers=PROMPT).verdict is Verdict.CORRECT
    assert score(tests, "    return x", preamble=PROMPT, helpers=PROMPT).reward == 0.0
    assert score(tests, "Half of it.", preamble=PROMPT, helpers=PROMPT).verdict is Verdict.UNPARSED


def test_classes_of_the_solution_and_setup(score: Scorer) -> None:
    program = "class Pair:\n    def __init__(self, a): self.a = a\ndef f(pairs, n): return pairs[0].a + n"
    assert score("assert f([Pair(5)], 4) == 9", _code(program)).reward == 1.0
    assert score("for n in [4]:\n    assert f([Pair(5)], n) == 5 + n", _code(program)).reward == 1.0
    assert score("assert f(pairs, 4) == 9", _code(program), setup="pairs = [Pair(5)]").reward == 1.0
    assert score("assert f(pairs, 4) > 8", _code(program), setup="pairs = [Pair(5)]").reward == 1.0
    assert score("assert f(pairs, 4) == 9", _code("def f(pairs, n): return 9"), setup="pairs = [Pair(5)]").reward == 0.0
    method = "class Solution:\n    def add(self, a, b): return a + b"
    for tests in ("assert Solution().add(1, 2) == 3", "for a in [1]:\n    assert Solution().add(a, b=2) == 3"):
        assert score(tests, _code(method), entry_point="Solution().add").reward == 1.0


def test_objects_of_calls(score: Scorer) -> None:
    program = _code("def f(a, b=1): return (a, b)")
    assert score([{"call": "f(1)", "expected": [1, 1]}], program).reward == 1.0
    assert score([{"input": [1, 2], "output": [1, 2]}, {"input": {"a": 1}, "output": [1, 1]}], program).reward == 1.0
    assert score([{"input": [[1], "x"], "output": [[1], "x"]}, {"input": [1], "output": [1]}], program).reward == 0.5
    assert score([{"call": "f(1)", "expected": [1, 1]}, "assert f(1) == [1, 1]"], program).reward == 0.5


@pytest.mark.parametrize(
    ("test", "value", "passes"),
    [
        ("assert f() is True", "True", True),
        ("assert f() is True", "1", False),
        ("assert f() == True", "1", True),
        ("assert f() is None", "None", True),
        ("assert f() is None", "0", False),
        ("assert f()", "[0]", True),
        ("assert f()", "{}", False),
        ("assert not f()", "''", True),
        ("assert not f()", "' '", False),
        ("assert not f()", "object()", False),
        ("assert f() == 10**30", "10**30", True),
        ("assert f() == 1000000000000000000000000000000", "10**30", True),
        ("assert f() == {(1, 2): [3]}", "{(1, 2): [3]}", True),
        ("assert f() == [0.1, 0.2]", "[0.1, 0.2 + 1e-16]", False),
        ("import decimal\nassert f() == decimal.Decimal('0.1')", "__import__('decimal').Decimal('0.10')", True),
        ("from collections import Counter\nassert f() == Counter('aab')", "{'a': 2, 'b': 1}", True),
        ("assert f() == '\\ud800'", "chr(0xd800)", True),
        ("assert list(f()) == [0, 1]", "range(2)", True),
        ("assert sys.getsizeof(f()) == sys.getsizeof(())", "()", True),
        ("assert list(map(f, [], [])) == []", "1", True),
    ],
)
def test_values(score: Scorer, test: str, value: str, passes: bool) -> None:
    assert score(test, _code(f"def f(): return {value}")).reward == float(passes)


EXPECTS_ERROR = """
try:
    f(-1)
    assert False
except ValueError:
    pass
"""


@pytest.mark.parametrize(
    ("program", "passes"),
    [
        ("def f(x): raise ValueError('no')", True),
        ("class Own(ValueError): pass\ndef f(x): raise Own", True),
        (
            "def f(x): 'x'.encode('ascii').decode('utf-16')\ndef f(x): raise UnicodeDecodeError('a', b'', 0, 1, 'b')",
            False,
        ),
        ("def f(x): raise KeyError('no')", False),
        ("def f(x): raise SystemExit", False),
        ("def f(x): return 1", False),
        ("def f(x): return object()", False),
    ],
)
def test_tests_that_expect_an_error(score: Scorer, program: str, passes: bool) -> None:
    assert score(EXPECTS_ERROR, _code(program)).reward == float(passes)


def test_no_answer_is_not_an_error_that_a_test_may_expect(score: Scorer) -> None:
    anything = "try:\n    f(-1)\n    assert False\nexcept:\n    pass"
    assert score(anything, _code("def f(x): raise ValueError")).reward == 1.0
    assert score(anything, _code("def f(x): return object()")).reward == 0.0


def test_each_statement_is_a_test_of_its_own(score: Scorer) -> None:
    source = """
def check(candidate):
    seen = []
    assert candidate(1) + 0 == 1
    assert candidate(2) + 0 == 5
    seen.append(candidate(3))
    assert seen == [3]
    missing = undefined_name
    assert candidate(4) + 0 == 4
def test_other():
    assert f(5) + 0 == 5
"""
    result = score(source, _code("def f(x): return x"))
    assert result.reward == 3 / 5
    assert result.detail == "3 of 5 tests; test 2: test: AssertionError"
    top = "missing = undefined_name\ndef test_a():\n    assert f(1) + 0 == 1\ndef test_b():\n    assert f(1) == 1"
    assert score(top, _code("def f(x): return x")).reward == 0.5


def test_blocks_do_not_share_their_variables(score: Scorer) -> None:
    source = "def test_a():\n    x = 1\n    assert f(x) == 1\ndef test_b():\n    assert f(x) + 0 == 1"
    assert score(source, _code("def f(x): return x")).reward == 0.5


def test_arguments_are_copies(score: Scorer) -> None:
    source = "items = [3, 1]\nassert f(items) == [1, 3]\nassert items == [3, 1]\nassert f(items) == [1, 3]"
    assert score(source, _code("def f(items):\n    items.sort()\n    return items")).reward == 1.0


ECHO = [{"stdin": "a\nb\n", "stdout": "A\nB\n"}, {"stdin": "c", "stdout": "C\n"}]


@pytest.mark.parametrize(
    ("program", "passed"),
    [
        ("import sys\nprint(sys.stdin.read().upper(), end='')", 2),
        (
            "if __name__ == '__main__':\n    while True:\n        try: print(input().upper() + ' ')\n"
            "        except EOFError: break",
            2,
        ),
        ("print(input().upper())", 1),
        ("import sys\nprint(sys.stdin.read().upper() + '\\n\\n')", 2),
        ("print('A\\nB\\nC')", 0),
        ("print('C\\nD')", 0),
        ("print('\\nC')", 0),
        ("print('C'); raise ValueError", 0),
        ("import os, sys\nprint('C'); sys.stdout.flush(); os._exit(1)", 0),
        ("import os\nos._exit(0)", 0),
        ("print('C' * 10**6)", 0),
        ("def f(: pass", 0),
        ("x = '\ud800'", 0),
    ],
)
def test_stdin(score: Scorer, program: str, passed: int) -> None:
    result = score(ECHO, _code(program), entry_point="")
    assert result.reward == passed / 2
    assert result.verdict is (Verdict.CORRECT if passed == 2 else Verdict.WRONG)


def test_stdin_without_a_block(score: Scorer) -> None:
    assert score(ECHO, "import sys\nprint(sys.stdin.read().upper())", entry_point="").reward == 1.0
    assert score(ECHO, "I would print it.", entry_point="").verdict is Verdict.UNPARSED


def test_all_stdin_tests_share_the_time(score: Scorer) -> None:
    result = score([ECHO[1]] * 20, _code("while True: pass"), entry_point="", seconds=0.3)
    assert result.detail == "0 of 20 tests; test 1: timed_out"
    some = "import time\nstart = time.process_time()\nwhile time.process_time() < start + 0.25: pass\nprint('C')"
    assert 0.0 < score([ECHO[1]] * 8, _code(some), entry_point="", seconds=0.8).reward < 0.5


def test_scores_repeat(score: Scorer) -> None:
    tests = "import random\nx = random.random()\nassert f(x) < 0"
    program = _code("import random\ndef f(x): return -x if random.random() < 0.5 else x")
    assert len({score(tests, program).reward for _ in range(5)}) == 1


def test_a_failure_of_the_sandbox_is_raised() -> None:
    class Broken:
        def open(self, source: str, *, limits: Any) -> Any:
            raise SandboxBroken("no zygote")

        run = open

    answer = CodeSpec(("assert f(1) == 1",), ("f",)).to_text()
    with pytest.raises(SandboxBroken):
        score_code(answer, _code("def f(x): return 1"), "", ProgramLimits(seconds=4.0, memory_mb=512), Broken())  # type: ignore[arg-type]


def test_one_sandbox_for_a_process(sandbox: Sandbox) -> None:
    def reward() -> float:
        answer = CodeSpec(("assert f(1) == 1",), ("f",)).to_text()
        return score_code(
            answer, _code("def f(x): return x"), "", ProgramLimits(seconds=4.0, memory_mb=512), shared_sandbox("auto")
        ).reward

    assert shared_sandbox("auto") is shared_sandbox("auto")
    assert reward() == 1.0
    pid = os.fork()
    if pid == 0:
        is_right = False
        try:
            is_right = reward() == 1.0
        finally:
            os._exit(0 if is_right else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert reward() == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((0.0, 512, "auto"), r"^seconds = 0\.0: give a number from"),
        ((1.0, 0, "auto"), "^memory_mb = 0"),
        ((1.0, 512, "docker"), "^isolation = 'docker': give one of 'auto'"),
    ],
)
def test_options_that_are_refused(options: tuple[float, int, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_options(*options)
