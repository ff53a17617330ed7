"""MATH (Hendrycks et al. 2021): competition problems with LaTeX answers, in five levels and seven subjects."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from groupwise.config.build import ConfigError, nearest
from groupwise.rewards.extract import AnswerMark, check_marks, last_boxed, mark_answer
from groupwise.rewards.math.score_math import score_math
from groupwise.tasks.rows import Row, load_rows, plain_text, stable_id
from groupwise.tasks.task import Split
from groupwise.types import Message, Problem, Score

logger = logging.getLogger(__name__)

SUBJECTS = (
    "Algebra",
    "Counting & Probability",
    "Geometry",
    "Intermediate Algebra",
    "Number Theory",
    "Prealgebra",
    "Precalculus",
)
MAX_SKIPPED = 4
"""The published data has two training rows without an answer and two without a level ..."""
MAX_SKIPPED_SHARE = 0.01
"""... so that many, or this share, are a blemish; more is a broken file."""

_LEVEL = re.compile(r"(?:Level )?([1-5])")


@dataclass(frozen=True)
class HendrycksMath:
    """Competition mathematics with LaTeX answers, levels 1 to 5 (MATH).

    Reward: `correct` 1.0 when the last `\\boxed{}` is right, `box` 0.1 for a box, `last_number` 0.1 when the box is not
    right but the last number is. `answer_marks` asks for other marks than a box. The few rows of the published data
    that lack an answer or a level, repeat a problem or are held out as well are left out and counted in the log.
    """

    levels: tuple[int, ...] = (1, 2, 3, 4, 5)
    """Keep problems of these levels, in training and held out."""
    subjects: tuple[str, ...] = ()
    """Keep problems of these subjects, as in "Number Theory"; empty is all."""
    train: str = "DigitalLearningGmbH/MATH-lighteval"
    """A .jsonl path or hub name; rows have problem, solution, level, subject (or type), and mostly answer."""
    held_out: str = "DigitalLearningGmbH/MATH-lighteval"
    """The same for held-out problems."""
    train_split: str = "train"
    """Split of the hub data set to train on."""
    held_out_split: str = "test"
    """Split of the hub data set to hold out."""
    instruction: str = "Reason step by step, and put your final answer within \\boxed{}."
    """Follows the problem in the prompt."""
    answer_marks: tuple[AnswerMark, ...] = ("boxed",)
    """Where the answer is looked for; the first of these that is in the completion decides. `boxed`: the last
    `\\boxed{}`. `hashes`: the line after `####`. `final`: the line after `FINAL:` or `Final answer:`. `tag`: the last
    `<answer>`. `number`: the last number."""

    verifier: ClassVar[str] = "math/2"

    def __post_init__(self) -> None:
        check_marks(self.answer_marks)
        if not self.levels or not set(self.levels) <= {1, 2, 3, 4, 5}:
            raise ConfigError(f"levels = {list(self.levels)}: expected levels from 1 to 5")
        for subject in self.subjects:
            if subject not in SUBJECTS:
                raise ConfigError(f"subjects: {subject!r} is not one of MATH's; {nearest(subject, SUBJECTS)}")

    def problems(self, split: Split) -> Sequence[Problem]:
        held_out = self._load("held_out")
        if split == "held_out":
            return held_out
        # The published splits share a problem; a held-out score must not count what was trained on.
        held_out_ids = {problem.id for problem in held_out}
        train = self._load("train")
        kept = [problem for problem in train if problem.id not in held_out_ids]
        if len(kept) < len(train):
            logger.warning("%s: dropped %d problems that are held out", self.train, len(train) - len(kept))
        return kept

    def _load(self, split: Split) -> list[Problem]:
        is_train = split == "train"
        source, hub_split = (self.train, self.train_split) if is_train else (self.held_out, self.held_out_split)
        rows = load_rows(source, hub_split, key=f"task.options.{split}")
        problems: dict[str, Problem] = {}
        num_repeated, skipped = 0, []
        for row in rows:
            answer, level = _read_answer(row), _read_level(row)
            if not answer or level is None:
                skipped.append(row)
                continue
            subject = row.text("subject" if "subject" in row.values else "type")
            if level in self.levels and (not self.subjects or subject in self.subjects):
                problem = self._problem(row, answer, level, subject)
                num_repeated += problem.id in problems  # one training problem is there twice
                problems.setdefault(problem.id, problem)
        if len(skipped) > max(MAX_SKIPPED, MAX_SKIPPED_SHARE * len(rows)):
            raise skipped[0].error(f"no answer or no level, and so in {len(skipped)} of {len(rows)} rows")
        if skipped or num_repeated:
            logger.warning(
                "%s: skipped %d rows without an answer or a level and %d that repeat a problem",
                *(source, len(skipped), num_repeated),
            )
        return list(problems.values())

    def _problem(self, row: Row, answer: str, level: int, subject: str) -> Problem:
        text = row.text("problem")
        prompt = f"{text.strip()}\n{self.instruction}".strip()
        meta = {"level": level, "subject": subject, "solution": row.text("solution")}
        return Problem(stable_id("math", plain_text(text)), (Message("user", prompt),), answer, meta)

    def bare_problem(self, row: Row) -> Problem:
        """From a row {answer}, or {solution} with a box. A problem may be there too, so that restating it is seen."""
        has_answer = "answer" in row.values or "solution" not in row.values
        answer = row.answer("answer").strip() if has_answer else _read_answer(row)
        if not answer:
            raise row.error("no 'answer', and no \\boxed{} in 'solution'")
        text = row.text("problem") if "problem" in row.values else ""
        return Problem(stable_id("math", plain_text(text) or answer), (Message("user", text),), answer)

    def gold_completion(self, problem: Problem) -> str:
        return mark_answer(self.answer_marks[0], problem.answer)

    def score(self, problem: Problem, completion: str) -> Score:
        question = problem.messages[-1].content if problem.messages else ""
        return score_math(problem.answer, completion, self.verifier, marks=self.answer_marks, question=question)

    def demonstrate(self, problem: Problem) -> str:
        """The data set's own solution."""
        return str(problem.meta["solution"])


@dataclass(frozen=True)
class HendrycksMathHard(HendrycksMath):
    """The hardest level of MATH alone (MATH level 5).

    Rewards and options are those of `math`.
    """

    levels: tuple[int, ...] = (5,)
    """Keep problems of these levels, in training and held out."""


def _read_answer(row: Row) -> str:
    """The answer column, or the box of the solution where the data set has no such column; '' is a known blemish."""
    if "answer" not in row.values:
        boxed = last_boxed(row.text("solution"))
        return "" if boxed is None else boxed.text.strip()
    answer = row.get("answer")
    if not isinstance(answer, str):
        raise row.error(f"'answer' is {answer!r:.60}, expected a string")
    return answer.strip()


def _read_level(row: Row) -> int | None:
    """1 to 5; None for the "?" of two known rows."""
    level = str(row.get("level"))
    match = _LEVEL.fullmatch(level)
    if match is None and "?" not in level:
        raise row.error(f"'level' is {level[:40]!r}, expected 1 to 5 or 'Level 1' to 'Level 5'")
    return None if match is None else int(match[1])
