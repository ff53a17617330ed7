"""The checks of an audit, one by one: which completions each asks about, and what it finds.

A finding is a reason to look, not a proof: in a task that asks for the answer alone, "no reasoning" is as it should be.
The interval is Wilson's. It takes completions as independent, which rollouts of one group are not: read it as narrow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from groupwise.audit.answers import COPY_SHARE, MIN_WORDS_AFTER, Reading
from groupwise.base.stats import wilson_interval
from groupwise.rewards.format import excerpt
from groupwise.types import Score, Verdict

MIN_SHARED_CHARS = 80
"""Shorter texts may well answer two problems alike."""
EXCERPT_CHARS = 200


@dataclass(frozen=True, slots=True)
class AuditSubject:
    """One rollout, as the checks see it."""

    score: Score
    reading: Reading
    num_same_in_group: int
    """Rollouts of its group with exactly this text, itself included."""
    other_problem: str
    """Another problem that got exactly this text; "" for none."""
    num_chars: int

    @property
    def is_correct(self) -> bool:
        return self.score.verdict is Verdict.CORRECT


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    title: str
    of: str
    """Which completions it asks about."""
    asks: Callable[[AuditSubject], bool]
    evidence: Callable[[AuditSubject], str]
    """What it found, for people; "" when nothing."""


@dataclass(frozen=True, slots=True)
class AuditExample:
    step: int
    problem_id: str
    rollout_number: int
    verdict: str
    evidence: str
    excerpt: str
    """Of the completion: one line, printable."""


@dataclass(frozen=True, slots=True)
class AuditFinding:
    name: str
    title: str
    of: str
    count: int
    total: int
    low: float
    """The 95 % interval of the share ..."""
    high: float
    examples: tuple[AuditExample, ...]

    @property
    def share(self) -> float:
        return self.count / self.total if self.total else 0.0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "share": self.share}


def make_finding(check: Check, count: int, total: int, examples: list[AuditExample]) -> AuditFinding:
    low, high = wilson_interval(count, total)
    return AuditFinding(check.name, check.title, check.of, count, total, low, high, tuple(examples))


def make_example(
    step: int, problem_id: str, number: int, subject: AuditSubject, evidence: str, completion: str
) -> AuditExample:
    shown = excerpt(completion, EXCERPT_CHARS)
    return AuditExample(step, problem_id, number, subject.score.verdict.value, excerpt(evidence, EXCERPT_CHARS), shown)


def _has_mark(subject: AuditSubject) -> bool:
    return bool(subject.reading.marks)


def _correct_with_mark(subject: AuditSubject) -> bool:
    return subject.is_correct and _has_mark(subject)


def _always(subject: AuditSubject) -> bool:
    return True


def _hedges(subject: AuditSubject) -> str:
    answers = subject.reading.answers
    return " | ".join(answers[:5]) if len(answers) > 1 else ""


def _goes_on(subject: AuditSubject) -> str:
    return subject.reading.text_after if subject.reading.num_words_after >= MIN_WORDS_AFTER else ""


def _copies(subject: AuditSubject) -> str:
    share = subject.reading.copied_share
    return f"{share:.0%} of the prompt, word for word" if share >= COPY_SHARE else ""


def _failed(verdict: Verdict) -> Callable[[AuditSubject], str]:
    return lambda subject: (subject.score.detail or "no reason given") if subject.score.verdict is verdict else ""


CHECKS = (
    Check(
        "false_arithmetic",
        "Correct, but an equation in it is false",
        "correct completions with written arithmetic",
        lambda subject: subject.is_correct and subject.reading.num_equations > 0,
        lambda subject: "; ".join(subject.reading.false_equations[:3]),
    ),
    Check(
        "no_reasoning",
        "Correct, with the answer alone",
        "correct completions with a marked answer",
        _correct_with_mark,
        lambda subject: "" if subject.reading.has_reasoning else "nothing but an answer",
    ),
    Check("hedging", "Several different answers", "completions with a marked answer", _has_mark, _hedges),
    Check(
        "restated",
        "Correct, and the answer is taken from the prompt",
        "correct completions with a marked answer",
        _correct_with_mark,
        lambda subject: subject.reading.restated,
    ),
    Check("prompt_copied", "The prompt copied out", "completions", _always, _copies),
    Check("goes_on", "Goes on after the answer", "completions with a marked answer", _has_mark, _goes_on),
    Check(
        "identical",
        "The same text twice in a group",
        "completions",
        _always,
        lambda subject: f"{subject.num_same_in_group} times" if subject.num_same_in_group > 1 else "",
    ),
    Check(
        "same_for_other_problem",
        "The same long text for another problem",
        f"completions of {MIN_SHARED_CHARS} characters or more",
        lambda subject: subject.num_chars >= MIN_SHARED_CHARS,
        lambda subject: f"also for {subject.other_problem}" if subject.other_problem else "",
    ),
    Check("verifier_error", "The verifier failed", "completions", _always, _failed(Verdict.ERROR)),
    Check("verifier_timed_out", "The verifier ran out of time", "completions", _always, _failed(Verdict.TIMED_OUT)),
)
