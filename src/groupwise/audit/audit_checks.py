"""The checks of an audit: which completions each covers, and what it finds.

A finding is a reason to look, not a proof: in a task that asks for the answer alone, "no reasoning" is expected. The
Wilson interval treats completions as independent, which rollouts of one group are not, so it is too narrow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

from groupwise.audit.answers import COPY_SHARE, MIN_WORDS_AFTER, Reading
from groupwise.base.stats import wilson_interval
from groupwise.rewards.format import excerpt
from groupwise.types import Score, Verdict

MIN_SHARED_CHARS = 80
"""Shorter texts may be a valid answer to two problems."""
EXCERPT_CHARS = 200


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

    @property
    def has_mark(self) -> bool:
        return bool(self.reading.marks)

    @property
    def is_correct_with_mark(self) -> bool:
        return self.is_correct and self.has_mark


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    title: str
    of: str
    """The completions that it covers, in words."""
    asks: Callable[[AuditSubject], bool]
    evidence: Callable[[AuditSubject], str]
    """The finding in words; "" for none."""


@dataclass(frozen=True, slots=True)
class AuditExample:
    step: int
    problem_id: str
    rollout_number: int
    verdict: str
    evidence: str
    excerpt: str
    """Beginning of the completion: one line, printable."""


@dataclass(frozen=True, slots=True)
class AuditFinding:
    name: str
    title: str
    of: str
    count: int
    total: int
    low: float
    high: float
    """`low` to `high` is the 95 % interval of the share."""
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


def _hedges(subject: AuditSubject) -> str:
    answers = subject.reading.answers
    return " | ".join(answers[:5]) if len(answers) > 1 else ""


def _goes_on(subject: AuditSubject) -> str:
    return subject.reading.text_after if subject.reading.num_words_after >= MIN_WORDS_AFTER else ""


def _copies(subject: AuditSubject) -> str:
    share = subject.reading.copied_share
    return f"{share:.0%} of the prompt verbatim" if share >= COPY_SHARE else ""


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
        attrgetter("is_correct_with_mark"),
        lambda subject: "" if subject.reading.has_reasoning else "only an answer",
    ),
    Check("hedging", "Several different answers", "completions with a marked answer", attrgetter("has_mark"), _hedges),
    Check(
        "restated",
        "Correct, but the answer is copied from the prompt",
        "correct completions with a marked answer",
        attrgetter("is_correct_with_mark"),
        lambda subject: subject.reading.restated,
    ),
    Check("prompt_copied", "Copies the prompt", "completions", lambda subject: True, _copies),
    Check(
        "goes_on", "Continues after the answer", "completions with a marked answer", attrgetter("has_mark"), _goes_on
    ),
    Check(
        "identical",
        "The same text twice in a group",
        "completions",
        lambda subject: True,
        lambda subject: f"{subject.num_same_in_group} times" if subject.num_same_in_group > 1 else "",
    ),
    Check(
        "same_for_other_problem",
        "The same long text for another problem",
        f"completions of {MIN_SHARED_CHARS} characters or more",
        lambda subject: subject.num_chars >= MIN_SHARED_CHARS,
        lambda subject: f"also for {subject.other_problem}" if subject.other_problem else "",
    ),
    Check("verifier_error", "The verifier failed", "completions", lambda subject: True, _failed(Verdict.ERROR)),
    Check(
        "verifier_timed_out",
        "The verifier ran out of time",
        "completions",
        lambda subject: True,
        _failed(Verdict.TIMED_OUT),
    ),
)
