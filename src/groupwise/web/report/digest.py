"""A single pass over training rollouts: the figures of each step for charts, and a few completions to show.

Contract: steps are read one at a time, in order, so that a run of any length fits in memory. Completions to show are
selected by `RULES`, which the page prints, never by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from groupwise.audit.answers import MIN_REASONING_WORDS, read_completion
from groupwise.base.stats import mean
from groupwise.types import Rollout, Score, ScoredGroup, Verdict
from groupwise.web.report.behaviours import BEHAVIOURS, behaviours_in

MAX_TRIED = 200
"""Number of steps, from the newest, that are searched for a reward without reasoning."""
RULES = {
    "first_solve": "The first correct completion of training, in sampling order.",
    "longest": "The longest completion of training in tokens; the first if there are several.",
    "no_reasoning": f"The shortest correct completion of a step, if it has no equation and fewer than "
    f"{MIN_REASONING_WORDS} words besides its answer; from the newest such step of the last {MAX_TRIED}.",
}


@dataclass(frozen=True, slots=True)
class Picked:
    step: int
    group: ScoredGroup
    number: int
    """Index of the rollout in its group."""


@dataclass(frozen=True, slots=True)
class StepDigest:
    step: int
    num_rollouts: int
    num_correct: int
    tokens_low: float
    """10th percentile of the lengths."""
    tokens_high: float
    """90th percentile of the lengths."""
    tokens_mean: float
    tokens_correct: float
    """Mean length of the correct completions; NaN if there are none."""
    tokens_wrong: float
    counts: dict[str, int]
    """Number of completions that show a sign, by its name."""
    counts_correct: dict[str, int]
    """Number of correct completions that show a sign, by its name."""


@dataclass(frozen=True, slots=True)
class Digest:
    steps: tuple[StepDigest, ...]
    picked: dict[str, Picked]
    """Selected completions by rule; a rule that found nothing is missing."""

    @property
    def num_rollouts(self) -> int:
        return sum(step.num_rollouts for step in self.steps)


def digest_rollouts(steps: Iterable[tuple[int, Sequence[ScoredGroup]]]) -> Digest:
    digests: list[StepDigest] = []
    picked: dict[str, Picked] = {}
    shortest: list[Picked] = []
    longest_tokens = -1
    for step, groups in steps:
        members = [(scored, number) for scored in groups for number in range(len(scored.scores))]
        if not members:
            continue
        digests.append(_digest_step(step, groups))
        correct = [(scored, n) for scored, n in members if scored.scores[n].verdict is Verdict.CORRECT]
        if correct and "first_solve" not in picked:
            picked["first_solve"] = Picked(step, *correct[0])
        scored, number = max(members, key=lambda member: _num_tokens(*member))
        if _num_tokens(scored, number) > longest_tokens:
            longest_tokens = _num_tokens(scored, number)
            picked["longest"] = Picked(step, scored, number)
        if correct:
            # Only the shortest of each step is read: it is the most likely to have no reasoning.
            shortest.append(Picked(step, *min(correct, key=lambda member: _num_tokens(*member))))
            shortest = shortest[-MAX_TRIED:]
    for candidate in reversed(shortest):
        prompt = candidate.group.group.prompt.problem.question
        if not read_completion(prompt, candidate.group.group.rollouts[candidate.number].text).has_reasoning:
            picked["no_reasoning"] = candidate
            break
    return Digest(tuple(digests), {rule: picked[rule] for rule in RULES if rule in picked})


def _num_tokens(scored: ScoredGroup, number: int) -> int:
    return len(scored.group.rollouts[number].token_ids)


def _digest_step(step: int, groups: Sequence[ScoredGroup]) -> StepDigest:
    pairs: list[tuple[Rollout, Score]] = [
        pair for scored in groups for pair in zip(scored.group.rollouts, scored.scores, strict=True)
    ]
    lengths = sorted(len(rollout.token_ids) for rollout, _ in pairs)
    by_verdict = {
        verdict: [len(rollout.token_ids) for rollout, score in pairs if score.verdict is verdict]
        for verdict in (Verdict.CORRECT, Verdict.WRONG)
    }
    signs = [(behaviours_in(rollout.text), score.verdict is Verdict.CORRECT) for rollout, score in pairs]
    return StepDigest(
        step=step,
        num_rollouts=len(pairs),
        num_correct=len(by_verdict[Verdict.CORRECT]),
        tokens_low=lengths[len(lengths) // 10],
        tokens_high=lengths[len(lengths) - 1 - len(lengths) // 10],
        tokens_mean=mean(lengths),
        tokens_correct=mean(by_verdict[Verdict.CORRECT]),
        tokens_wrong=mean(by_verdict[Verdict.WRONG]),
        counts={b.name: sum(b.name in found for found, _ in signs) for b in BEHAVIOURS},
        counts_correct={b.name: sum(b.name in found and right for found, right in signs) for b in BEHAVIOURS},
    )
