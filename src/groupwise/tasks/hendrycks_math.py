"""MATH (Hendrycks et al. 2021): competition problems with LaTeX answers, five levels and seven subjects."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, ClassVar

from groupwise.config.build import Within, nearest, require
from groupwise.rewards.extract import last_boxed
from groupwise.rewards.math.score_math import score_math
from groupwise.tasks.rows import Row, SkippedRow, plain_text, read_distinct, stable_id
from groupwise.tasks.task import PublishedTask, Split, drop_held_out
from groupwise.types import Message, Problem, Score

SUBJECTS = (
    *("Algebra", "Counting & Probability", "Geometry", "Intermediate Algebra", "Number Theory", "Prealgebra"),
    "Precalculus",
)
MAX_SKIPPED_SHARE = 0.01
"""The published training rows have two without an answer and two without a level."""

_LEVEL = re.compile(r"(?:Level )?([1-5])")


@dataclass(frozen=True)
class HendrycksMath(PublishedTask):
    """Competition mathematics with LaTeX answers, levels 1 to 5 (MATH).

    Reward: `correct` 1.0 when the last `\\boxed{}` is right, `box` 0.1 for a box, `last_number` 0.1 when the box is not
    right but the last number is. `answer_marks` selects other marks than a box. The few published rows that lack an
    answer or a level, repeat a problem or are also held out are skipped and counted in the log.
    """

    levels: tuple[Annotated[int, Within("[1, 5]")], ...] = (1, 2, 3, 4, 5)
    """Levels to keep, in training and held out."""
    subjects: tuple[str, ...] = ()
    """Subjects to keep, as in "Number Theory"; empty: all."""
    train: str = "DigitalLearningGmbH/MATH-lighteval"
    """A .jsonl path or hub name of rows {problem, solution, level, subject (or type)}, optionally with answer."""
    held_out: str = "DigitalLearningGmbH/MATH-lighteval"

    verifier: ClassVar[str] = "math/3"

    def check(self) -> None:
        super().check()
        require(bool(self.levels), "levels = []: name at least one, from 1 to 5")
        for one in self.subjects:
            require(one in SUBJECTS, f"subjects: {one!r} is not a subject of MATH; {nearest(one, SUBJECTS)}")

    def problems(self, split: Split) -> Sequence[Problem]:
        held_out = self._load("held_out")
        if split == "held_out":
            return held_out
        return drop_held_out(self.train, self._load("train"), held_out, attrgetter("id"))

    def _load(self, split: Split) -> list[Problem]:
        source = self.train if split == "train" else self.held_out
        return read_distinct(source, self.rows(split), self._problem, MAX_SKIPPED_SHARE)

    def _problem(self, row: Row) -> Problem | None:
        answer, level = _read_answer(row), _read_level(row)
        if not answer or level is None:
            raise SkippedRow("no answer or no level", "add them, or remove the rows")
        subject = row.text("subject" if "subject" in row.values else "type")
        if level not in self.levels or (self.subjects and subject not in self.subjects):
            return None
        text = row.text("problem")
        meta = {"level": level, "subject": subject, "solution": row.text("solution")}
        return Problem(stable_id("math", plain_text(text)), self.messages(text), answer, meta)

    def bare_problem(self, row: Row) -> Problem:
        """Read a row {answer}, or {solution} with a box. With an optional `problem`, restating it is detected."""
        has_answer = "answer" in row.values or "solution" not in row.values
        answer = row.answer("answer").strip() if has_answer else _read_answer(row)
        if not answer:
            raise row.error("no 'answer', and no \\boxed{} in 'solution'")
        text = row.optional_text("problem")
        return Problem(stable_id("math", plain_text(text) or answer), (Message("user", text),), answer)

    def score(self, problem: Problem, completion: str) -> Score:
        return score_math(problem.answer, completion, self.verifier, marks=self.answer_marks, question=problem.question)

    def demonstrate(self, problem: Problem) -> str:
        """Return the data set's own solution."""
        return str(problem.meta["solution"])


@dataclass(frozen=True)
class HendrycksMathHard(HendrycksMath):
    """Competition mathematics of the hardest level (MATH level 5).

    Rewards and options are those of `math`.
    """

    levels: tuple[Annotated[int, Within("[1, 5]")], ...] = (5,)


def _read_answer(row: Row) -> str:
    """Return the answer column, or the solution's box where there is no such column; "" for the known bad rows."""
    if "answer" not in row.values:
        boxed = last_boxed(row.text("solution"))
        return "" if boxed is None else boxed.text.strip()
    answer = row.get("answer")
    if not isinstance(answer, str):
        raise row.error(f"'answer' is {answer!r:.60}, expected a string")
    return answer.strip()


def _read_level(row: Row) -> int | None:
    """Return 1 to 5, or None for the "?" of two published rows."""
    level = str(row.get("level"))
    match = _LEVEL.fullmatch(level)
    if match is None and "?" not in level:
        raise row.error(f"'level' is {level[:40]!r}, expected 1 to 5 or 'Level 1' to 'Level 5'")
    return None if match is None else int(match[1])
