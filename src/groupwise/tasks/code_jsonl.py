"""Programming problems: the base class, and your own from any .jsonl file or hub data set with prompts and tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from groupwise.config.build import Config, ConfigError, Within
from groupwise.rewards.code.score_code import check_options, score_code, shared_sandbox
from groupwise.rewards.code.unit_tests import BadTests, CodeSpec, defines, infer_entry_points, read_plan
from groupwise.sandbox import ProgramLimits
from groupwise.tasks.rows import Row, plain_text, stable_id
from groupwise.tasks.task import DataTask, ShareBelowOne
from groupwise.types import Message, Problem, Score


@dataclass(frozen=True)
class CodeTask(Config):
    """Options of every programming task."""

    seconds: Annotated[float, Within("[0.001, 86400]")] = 4.0
    """CPU time for all tests of a problem together; a program that exceeds it, or that sleeps for 2 s, fails the
    remaining tests."""
    memory_mb: Annotated[int, Within(f"[1, {1 << 20}]")] = 512
    """Memory of a program in MiB, on top of what Python itself takes."""
    isolation: str = "auto"
    """How programs are isolated: `namespaces`, `landlock`, or `auto`: the first of them that this machine offers."""

    verifier: ClassVar[str] = "code/2"

    def check(self) -> None:
        check_options(self.seconds, self.memory_mb, self.isolation)

    @property
    def limits(self) -> ProgramLimits:
        return ProgramLimits(seconds=self.seconds, memory_mb=self.memory_mb)

    @property
    def max_wall_seconds(self) -> float:
        return 3 * self.limits.wall  # that of the program, and twice that for the judge of its answers

    def score(self, problem: Problem, completion: str) -> Score:
        return score_code(problem.answer, completion, self.verifier, self.limits, shared_sandbox(self.isolation))

    def demonstrate(self, problem: Problem) -> str:
        """Return the data set's own solution."""
        completion = self.gold_completion(problem)
        if completion is None:
            raise ConfigError(f"problem {problem.id}: its row has no solution to demonstrate; add one or remove it")
        return completion

    def gold_completion(self, problem: Problem) -> str | None:
        solution = problem.meta.get("solution")
        return fenced(solution) if isinstance(solution, str) else None

    def bare_problem(self, row: Row) -> Problem:
        """Read a row {tests} (text or a list), optionally with hidden_tests, entry_point, setup, prompt, solution.

        A prompt that is Python and defines the entry point, as in HumanEval, goes before the program.
        """
        spec = spec_from(row, row.get("tests"), hidden=row.optional("hidden_tests"))
        return problem_from(row, str(row.values.get("id", row.where)), (), spec)


@dataclass(frozen=True)
class CodeJsonl(DataTask, CodeTask):
    """Your own .jsonl file of programming problems, each with a prompt and tests.

    Reward: `tests`, the share of a problem's tests that pass; correct when all do. `tests` is Python text (assert
    statements, or `def check(candidate)`) or a list of such texts or of objects: {"call", "expected"}, {"input",
    "output"} with the arguments and the value of `entry_point`, or {"stdin", "stdout"} for whole programs.
    `hidden_tests` has the same form and is used only on held-out problems. Optional: `entry_point` (what the tests
    call), `setup` (code that makes arguments), `solution`.
    """

    held_out_share: ShareBelowOne = 0.1
    """Share of `train` to hold out, chosen by a hash of the prompt; ignored where `held_out` is set."""
    prompt_key: str = "prompt"
    """Column of the prompt. If it is Python that defines the entry point, it goes before the program."""
    tests_key: str = "tests"
    """Column of the tests."""
    hidden_tests_key: str = "hidden_tests"
    """Column of the additional tests for held-out problems."""
    system: str = ""
    """System message before each prompt; empty: none."""
    instruction: str = "Answer with the Python code in one ```python block."
    """Ends the prompt."""
    level_key: str | None = None
    """Column of the difficulty, for curricula and reports."""

    def problem(self, row: Row, is_held_out: bool) -> Problem:
        hidden = row.optional(self.hidden_tests_key) if is_held_out else None
        spec = spec_from(row, row.get(self.tests_key), hidden=hidden, prompt_key=self.prompt_key)
        prompt = row.text(self.prompt_key)
        shown = fenced(prompt.strip()) if spec.preamble else prompt.strip()
        unnamed = [f"`{name}`" for name in spec.entry_points if name not in prompt]
        hint = f"Define {', '.join(unnamed)}.\n" if unnamed else ""
        system = (Message("system", self.system),) if self.system else ()
        messages = (*system, Message("user", f"{shown}\n{hint}{self.instruction}".strip()))
        meta = {} if self.level_key is None else {"level": row.level(self.level_key)}
        return problem_from(row, stable_id("code", plain_text(prompt)), messages, spec, **meta)


def fenced(code: str) -> str:
    return f"```python\n{code.rstrip()}\n```"


@contextlib.contextmanager
def bad_tests_at(row: Row) -> Iterator[None]:
    """Turn `BadTests` into an error of the row."""
    try:
        yield
    except BadTests as error:
        raise row.error(str(error)) from None


def spec_from(row: Row, tests: Any, *, hidden: Any = None, prompt_key: str = "prompt") -> CodeSpec:
    """Read and check the tests of a row whose other fields are named as in `CodeTask.bare_problem`."""
    with bad_tests_at(row):
        all_tests = (*_listed(tests, "tests"), *_listed(hidden, "hidden_tests"))
        setup, solution = row.optional_text("setup"), row.optional_text("solution")
        prompt = row.values.get(prompt_key)
        prompt = prompt if isinstance(prompt, str) else ""
        entry_points = _entry_points(row) or infer_entry_points(all_tests, solution, setup)
        preamble = prompt if entry_points and defines(prompt, entry_points[0]) else ""
        spec = CodeSpec(all_tests, entry_points, preamble=preamble, helpers=preamble, setup=setup)
        read_plan(spec.to_text())
    return spec


def problem_from(row: Row, identifier: str, messages: Sequence[Message], spec: CodeSpec, **meta: Any) -> Problem:
    solution = row.optional_text("solution")
    extra = {"solution": solution} if solution else {}
    return Problem(identifier, tuple(messages), spec.to_text(), {**meta, **extra})


def _entry_points(row: Row) -> tuple[str, ...]:
    given = row.optional("entry_point") or []
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise row.error(f"'entry_point' is {given!r:.60}, expected a name or a list of names")
    return tuple(names)


def _listed(tests: Any, key: str) -> tuple[Any, ...]:
    if tests is None:
        return ()
    if isinstance(tests, str):
        return (tests,)
    if not isinstance(tests, list):
        raise BadTests(f"{key!r} is {tests!r:.60}: expected Python text or a list of tests")
    return tuple(tests)
