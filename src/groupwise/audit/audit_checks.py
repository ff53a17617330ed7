"""The checks of an audit: which completions each covers, and what it finds.

A finding is a reason to look, not a proof: in a task that asks for the answer alone, "no reasoning" is expected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from groupwise.audit.answers import COPY_SHARE, MIN_WORDS_AFTER, Reading
from groupwise.base.text_layout import percent
from groupwise.types import Score, Verdict

MIN_SHARED_CHARS = 80
"""Shorter texts may be a valid answer to two problems."""


@dataclass(frozen=True, slots=True)
class AuditSubject:
    """One rollout, as the checks see it."""

    score: Score
    reading: Reading
    num_same_in_group: int
    """Rollouts of its group with exactly this text, itself included."""
    other_problem: str
    """Id of another problem with exactly this text; "" for none."""
    num_chars: int

    @property
    def is_correct(self) -> bool:
        return self.score.verdict is Verdict.CORRECT


class Population(NamedTuple):
    """The completions that a check covers."""

    name: str
    includes: Callable[[AuditSubject], bool]


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    title: str
    population: Population
    evidence: Callable[[AuditSubject], str]
    """The finding in words; "" for none."""


ALL = Population("completions", lambda subject: True)
LONG = Population(
    f"completions of {MIN_SHARED_CHARS} characters or more", lambda subject: subject.num_chars >= MIN_SHARED_CHARS
)
MARKED = Population("completions with a marked answer", lambda subject: bool(subject.reading.marks))
MARKED_CORRECT = Population(
    "correct completions with a marked answer", lambda subject: subject.is_correct and bool(subject.reading.marks)
)
WITH_ARITHMETIC = Population(
    "correct completions with written arithmetic",
    lambda subject: subject.is_correct and subject.reading.num_equations > 0,
)


def _hedges(subject: AuditSubject) -> str:
    answers = subject.reading.answers
    return " | ".join(answers[:5]) if len(answers) > 1 else ""


def _goes_on(subject: AuditSubject) -> str:
    return subject.reading.text_after if subject.reading.num_words_after >= MIN_WORDS_AFTER else ""


def _copies(subject: AuditSubject) -> str:
    share = subject.reading.copied_share
    return f"{percent(share, 0)} of the prompt verbatim" if share >= COPY_SHARE else ""


def _repeats(subject: AuditSubject) -> str:
    return f"{subject.num_same_in_group} times" if subject.num_same_in_group > 1 else ""


def _failed(verdict: Verdict) -> Callable[[AuditSubject], str]:
    return lambda subject: (subject.score.detail or "no reason given") if subject.score.verdict is verdict else ""


CHECKS = (
    Check(
        "false_arithmetic",
        "Correct, but an equation in it is false",
        WITH_ARITHMETIC,
        lambda subject: "; ".join(subject.reading.false_equations[:3]),
    ),
    Check(
        "no_reasoning",
        "Correct, with the answer alone",
        MARKED_CORRECT,
        lambda subject: "" if subject.reading.has_reasoning else "only an answer",
    ),
    Check("hedging", "Several different answers", MARKED, _hedges),
    Check(
        "restated",
        "Correct, but the answer is copied from the prompt",
        MARKED_CORRECT,
        lambda subject: subject.reading.restated,
    ),
    Check("prompt_copied", "Copies the prompt", ALL, _copies),
    Check("goes_on", "Continues after the answer", MARKED, _goes_on),
    Check("identical", "The same text twice in a group", ALL, _repeats),
    Check(
        "same_for_other_problem",
        "The same long text for another problem",
        LONG,
        lambda subject: f"also for {subject.other_problem}" if subject.other_problem else "",
    ),
    Check("verifier_error", "The verifier failed", ALL, _failed(Verdict.ERROR)),
    Check("verifier_timed_out", "The verifier ran out of time", ALL, _failed(Verdict.TIMED_OUT)),
)
