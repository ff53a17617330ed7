"""Scores of code: the share of a problem's tests that the program in a completion passes.

**Expected outputs never enter the process that runs the model's program.** It is given inputs and answers with plain
data (`plain_values`), which is compared here, or in the judge: a second sandbox that runs the data set's test code and
relays its calls of the solution to the first. Nothing that a program prints, raises or exits with is a pass, and an
object of its own class is not an answer. `unit_tests` decides which tests go which way.

What Python code overlooks fails a test by itself: NaN, unless the tests mention it, and a StopIteration that leaves the
solution.

All calls of a problem share one session of the program, so state kept between calls is at its own risk. A test that
fails or raises does not end the others, but when the program ends or runs out of time, the remaining tests fail. A test
of stdin and stdout has its own process; the outputs must have the same lines, up to trailing white space and empty
lines at the end.

The reward is passed / total. A program that loops, crashes or forges messages is wrong. `SandboxBroken` and
`SandboxUnavailable` are our failures and are raised.
"""

from __future__ import annotations

import atexit
import dataclasses
import inspect
import json
import marshal
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from groupwise.config.build import ConfigError
from groupwise.rewards.code import harness, plain_values
from groupwise.rewards.code.plain_values import MAX_TREE_BYTES, BadTree, encode, holds_nan, matches, read_tree, truth
from groupwise.rewards.code.unit_tests import CallTest, CodeSpec, GradingPlan, StdinTest, read_plan
from groupwise.rewards.format import excerpt
from groupwise.sandbox import ProgramLimits, ProgramStatus, Sandbox, Session, SessionEnded
from groupwise.types import Score, Verdict

SPARE_OUTPUT_BYTES = 65536
"""Bytes beyond the expected output after which a program is killed."""
MIN_SECONDS = 0.01
"""Time left below which no program is started."""

_FENCE = re.compile(r"[ \t]*+(`{3,}+|~{3,}+)[ \t]*+([^\s`]*+)[^`]*+")
_PYTHON = {"python", "py", "python3", "python2", "ipython"}
_BOOT = """
import marshal, os, struct, sys, types
def read(size):
    data = b""
    while len(data) < size:
        part = os.read(3, size - len(data))
        if not part:
            os._exit(0)
        data += part
    return data
for name, code in marshal.loads(read(*struct.unpack("!I", read(4)))):
    module = sys.modules[name] = types.ModuleType(name)
    exec(code, module.__dict__)
module.{main}()
"""


@dataclass(frozen=True, slots=True)
class Program:
    sources: tuple[str, ...]
    """Candidates in order: the first that compiles is the program."""
    is_fenced: bool


def score_code(answer: str, completion: str, verifier: str, limits: ProgramLimits, sandbox: Sandbox) -> Score:
    """Score the program of a completion; `answer` is the text of a `CodeSpec`."""
    spec, plan = read_plan(answer)
    program = find_program(completion, spec.entry_points[0] if spec.entry_points else "", spec.preamble)
    if program is None:
        return Score(0.0, Verdict.UNPARSED, {"tests": 0.0}, verifier, "no code")
    if plan.stdin:
        failures = _run_stdin_tests(plan.stdin, program, limits, sandbox)
    else:
        failures = _run_call_tests(spec, plan, program, limits, sandbox)
    if failures is None:
        return Score(0.0, Verdict.UNPARSED, {"tests": 0.0}, verifier, "no code block, and the text is not Python")
    num_passed = failures.count(None)
    reward = num_passed / len(failures)
    verdict = Verdict.CORRECT if num_passed == len(failures) else Verdict.WRONG
    first = next((f"; test {number}: {why}" for number, why in enumerate(failures, start=1) if why is not None), "")
    detail = excerpt(f"{num_passed} of {len(failures)} tests{first}", 160)
    return Score(reward, verdict, {"tests": reward}, verifier, detail)


def find_program(completion: str, entry_point: str = "", preamble: str = "") -> Program | None:
    """Return the program, with and without `preamble` before it; None where there is none.

    It is found by lines alone: model text is not parsed in our process. Of several fenced blocks the first of these
    counts: the last one marked as Python that defines the entry point, the last one that defines it, the last one
    marked as Python, the last one. An unclosed block extends to the end of the text. Without a block, the whole
    completion is the program if it defines the entry point, or if it continues the problem's code with an indented
    line; the sandbox decides whether it is Python.
    """
    defines = _definition(entry_point)
    blocks = _blocks(completion)
    if blocks:
        ranked = [
            (bool(defines and defines.search(text)), language in _PYTHON, place)
            for place, (language, text) in enumerate(blocks)
        ]
        text = blocks[max(ranked)[2]][1]
    else:
        is_continued = bool(preamble) and completion.lstrip("\r\n")[:1] in (" ", "\t")
        is_program = defines is None or bool(defines.search(completion)) or is_continued
        if not completion.strip() or not is_program:
            return None
        text = completion
    sources = (f"{preamble}\n{text}", text) if preamble else (text,)
    return Program(sources, bool(blocks))


def _definition(entry_point: str) -> re.Pattern[str] | None:
    """Return a pattern for definitions of the first name of `add` or `Solution().add`."""
    name = re.match(r"\w+", entry_point)
    if name is None:
        return None
    return re.compile(rf"^(?:(?:async[ \t]+)?def|class)[ \t]+{name[0]}\b|^{name[0]}[ \t]*(?::[^=\n]*)?=", re.MULTILINE)


def _blocks(text: str) -> list[tuple[str, str]]:
    """Return (language, content) of each fenced block."""
    blocks: list[tuple[str, str]] = []
    fence, language, indent, lines = "", "", 0, list[str]()
    for line in text.split("\n"):  # not splitlines: a string in the code may contain a form feed
        match = _FENCE.fullmatch(line)
        if fence:
            if match and match[1].startswith(fence) and not line.strip().strip(fence[0]):
                blocks.append((language, "\n".join(lines)))
                fence = ""
            else:
                lines.append(line[min(indent, len(line) - len(line.lstrip())) :])
        elif match:
            fence, language, lines = match[1], match[2].lower(), []
            indent = len(line) - len(line.lstrip())
    if fence:
        blocks.append((language, "\n".join(lines)))
    return blocks


def check_options(seconds: float, memory_mb: int, isolation: str) -> None:
    """Raise ConfigError for invalid sandbox options."""
    try:
        ProgramLimits(seconds=seconds, memory_mb=memory_mb)
        Sandbox(isolation)
    except ValueError as error:
        raise ConfigError(str(error).removeprefix("Limits.")) from None


def shared_sandbox(isolation: str) -> Sandbox:
    """Return this process's sandbox; a fork gets its own, since a child must not share its parent's."""
    key = (os.getpid(), isolation)
    if key not in _SANDBOXES:
        _SANDBOXES[key] = Sandbox(isolation)
    return _SANDBOXES[key]


_SANDBOXES: dict[tuple[int, str], Sandbox] = {}


@atexit.register
def close_shared_sandboxes() -> None:
    """Close this process's sandboxes; a later use makes new ones."""
    for (pid, _), sandbox in _SANDBOXES.items():
        if pid == os.getpid():
            sandbox.close()


class _ProgramSession:
    """The model's program, queried by messages until it ends."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.end = ""
        """Why it has ended; empty while it runs."""
        session.send(_bundle())

    def ask(self, message: bytes) -> bytes | None:
        if len(message) > MAX_TREE_BYTES:
            self.end = f"more than {MAX_TREE_BYTES} bytes to send"
        if self.end:
            return None
        self._session.send(message)
        try:
            return self._session.receive()
        except SessionEnded as ended:
            self.end = f"the program ended: {ended.outcome.status}"
            return None

    def answer(self, message: Sequence[Any]) -> list[Any]:
        """Return its answer, a list that begins with a string; `["ended", why]` without one."""
        data = self.ask(json.dumps(message).encode())
        if data is None:
            return ["ended", self.end]
        try:
            tree = read_tree(data)
        except BadTree as error:
            return ["forged", str(error)]
        is_answer = isinstance(tree, list) and len(tree) > 0 and isinstance(tree[0], str)
        return tree if is_answer else ["forged", "not an answer"]


Failure = str | None
"""Why a test failed. None when it passed, so that no text from a program can mean a pass."""


def _run_call_tests(
    spec: CodeSpec, plan: GradingPlan, program: Program, limits: ProgramLimits, sandbox: Sandbox
) -> list[Failure] | None:
    """Return one failure per test; None where there is no program at all."""
    with sandbox.open(_BOOT.format(main="serve_program"), limits=limits) as session:
        running = _ProgramSession(session)
        loaded = running.answer(["load", program.sources, spec.setup])
        if loaded[0] == "no code" and not program.is_fenced:
            return None
        if loaded[0] != "loaded":
            return [_reason(loaded)] * plan.num_tests
        failures: list[Failure] = [_call_failure(test, running) for test in plan.calls]
        if plan.num_judged:
            failures += _judged_failures(plan, running, limits, sandbox)
    return failures


def _call_failure(test: CallTest, running: _ProgramSession) -> Failure:
    answer = running.answer(["call", test.text, {name: encode(value) for name, value in test.values.items()}])
    if answer[0] != "value" or len(answer) != 2:
        return _reason(answer)
    tree = answer[1]
    match test.check:
        case "equal":
            is_right = matches(tree, test.expected, lists_are_tuples=test.is_json)
        case "is":
            is_right = tree is test.expected  # None, True and False are JSON values
        case "true":
            is_right = truth(tree) is True
        case "false":
            is_right = truth(tree) is False
    return None if is_right else "wrong value"


def _judged_failures(
    plan: GradingPlan, running: _ProgramSession, limits: ProgramLimits, sandbox: Sandbox
) -> list[Failure]:
    """Run the judge and relay its calls. A test fails if the program gave an unfit answer, whatever the test says."""
    failures: list[Failure] = []
    no_answer = end = ""
    # The judge waits while the program runs, so its wall-clock limit includes the program's time. A test may sleep.
    own = dataclasses.replace(limits, wall_seconds=2 * limits.wall, sleep_seconds=limits.wall)
    with sandbox.open(_BOOT.format(main="serve_judge"), limits=own) as judge:
        try:
            judge.send(_bundle())
            judge.send(plan.judge)
            while len(failures) < plan.num_judged:
                message = judge.receive()
                if message.startswith(b'["call", '):
                    answer = running.ask(message)
                    if answer is None:
                        end = running.end
                        break
                    if why := _unfit(answer, plan.may_be_nan):
                        no_answer, answer = why, b'["not plain", ""]'
                    judge.send(answer)
                else:
                    failures.append(no_answer or _judged_failure(message))
                    no_answer = ""
        except SessionEnded as ended:
            end = f"the judge ended: {ended.outcome.status}"
    return failures + [end] * (plan.num_judged - len(failures))


def _unfit(answer: bytes, may_be_nan: bool) -> Failure:
    """Return why an answer to the judge passes no test, whatever the test does with it; None if one may pass."""
    try:
        match read_tree(answer):
            case ["value", tree]:
                # Every comparison with NaN is false, so `not abs(f(x) - 1) > 0.1` would pass.
                return "NaN" if holds_nan(tree) and not may_be_nan else None
            case ["raised", str(), str(name)]:
                # Python takes these for the end of `map`, `filter` or `zip`, so a loop over no result would pass.
                return f"raised: {name}" if name in ("StopIteration", "StopAsyncIteration") else None
    except BadTree as error:
        return f"forged: {error}"
    return "no plain data"


def _judged_failure(message: bytes) -> Failure:
    try:
        verdict = read_tree(message)
    except BadTree:
        return "the judge's message is malformed"
    if verdict == ["test", True, ""]:
        return None
    return _reason(["test", verdict[-1]] if isinstance(verdict, list) and verdict else [])


def _run_stdin_tests(
    tests: Sequence[StdinTest], program: Program, limits: ProgramLimits, sandbox: Sandbox
) -> list[Failure] | None:
    """Return one failure per test; None where there is no program at all."""
    source = program.sources[0]
    if not program.is_fenced and not _is_python(source, limits, sandbox):
        return None
    seconds, wall = limits.seconds, limits.wall
    failures: list[Failure] = []
    for test in tests:
        if seconds < MIN_SECONDS or wall < MIN_SECONDS:
            failures.append("no time left")
            continue
        started = time.monotonic()
        most = len(test.stdout.encode()) + SPARE_OUTPUT_BYTES
        own = dataclasses.replace(limits, seconds=seconds, wall_seconds=wall, output_bytes=most)
        outcome = sandbox.run(source, stdin=test.stdin, limits=own)
        # Not each test anew for a program that sleeps.
        seconds = 0.0 if outcome.status is ProgramStatus.TIMED_OUT else seconds - outcome.seconds
        wall -= time.monotonic() - started
        is_right = outcome.status is ProgramStatus.OK and _lines(outcome.stdout) == _lines(test.stdout)
        why = "wrong output" if outcome.status is ProgramStatus.OK else str(outcome.status)
        failures.append(None if is_right else why)
    return failures


def _is_python(source: str, limits: ProgramLimits, sandbox: Sandbox) -> bool:
    with sandbox.open(_BOOT.format(main="serve_program"), limits=limits) as session:
        return _ProgramSession(session).answer(["compile", [source]]) == ["loaded"]


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _reason(answer: Sequence[Any]) -> str:
    """Shorten the reason of a program or the judge, which is hostile text."""
    return ": ".join(excerpt(part, 60) for part in answer[:2] if isinstance(part, str))


@cache
def _bundle() -> bytes:
    """Compile our code for the inside of a sandbox once: there it would take longer than most programs."""
    modules = (plain_values, harness)
    sources = [(module.__name__, inspect.getsource(module)) for module in modules]
    codes = [(name, compile(source, f"<{name}>", "exec", dont_inherit=True)) for name, source in sources]
    return marshal.dumps(codes)
