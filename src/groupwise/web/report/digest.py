"""Training rollouts in one pass: per step what charts need, and the few completions that are worth showing.

Contract: steps come in order and are read one at a time, so that a run of any length fits in memory. Completions that
are shown are picked by rule, never by hand: the rules are `RULES`, and the page prints them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from groupwise.audit.answers import MIN_REASONING_WORDS, read_completion
from groupwise.base.stats import mean
from groupwise.types import Rollout, Score, ScoredGroup, Verdict
from groupwise.web.report.behaviours import BEHAVIOURS, behaviours_in

MAX_TRIED = 200
"""Steps that are tried, from the newest, for a reward without reasoning."""
RULES = {
    "first_solve": "The first correct completion of the training, in the order in which it was sampled.",
    "longest": "The longest completion of the training, in tokens; the first of equals.",
    "no_reasoning": f"The shortest correct completion of a step, if it has no equation and fewer than "
    f"{MIN_REASONING_WORDS} words beside its answer; of the newest such step among the last {MAX_TRIED}.",
}


@dataclass(frozen=True, slots=True)
class Picked:
    step: int
    group: ScoredGroup
    number: int
    """Of the rollout in its group."""


@dataclass(frozen=True, slots=True)
class StepDigest:
    step: int
    num_rollouts: int
    num_correct: int
    tokens_low: float
    """The length that a tenth of the completions stay below ..."""
    tokens_high: float
    """... and a tenth exceed."""
    tokens_mean: float
    tokens_correct: float
    """Mean length of the correct ones; NaN where there are none."""
    tokens_wrong: float
    counts: dict[str, int]
    """Completions that show a sign, by its name."""
    counts_correct: dict[str, int]
    """Of the correct ones."""


@dataclass(frozen=True, slots=True)
class Digest:
    steps: tuple[StepDigest, ...]
    picked: dict[str, Picked]
    """By the name of the rule; a rule that found nothing is not there."""

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
            # The shortest of a step is the likeliest to have none: one reading a step instead of hundreds.
            shortest.append(Picked(step, *min(correct, key=lambda member: _num_tokens(*member))))
            shortest = shortest[-MAX_TRIED:]
    for candidate in reversed(shortest):
        prompt = candidate.group.group.prompt.problem.messages[-1].content
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
