"""Scores with intervals, from scored groups. This module does not import torch.

The unit of every interval is the problem, because completions of one problem are not independent. A score is a mean
over problems of one value each. If all values are 0 or 1, it is a share with Wilson's interval; if they are between,
"plus four" (`stats.mean_interval`); for other quantities (lengths, rewards), a bootstrap over problems.

Votes: all completions that the verifier calls correct vote for one answer, the right one. Wrong completions vote for
the answer that the task's marks find, compared as text after `normalize`. Completions without an answer do not vote.
Completions that could not be judged count in the error rates only.

pass@k and maj@k are exact: expectations over all subsets of k of a problem's judged completions. A problem with fewer
than k of them is left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from groupwise.base.stats import bootstrap_interval, mean, mean_interval, wilson_interval
from groupwise.rewards.extract import AnswerMark, final_answer
from groupwise.rewards.math.normalize import normalize
from groupwise.runs.results import Estimate, Scores
from groupwise.types import Finish, Rollout, Score, ScoredGroup, Verdict

BREAKDOWNS = ("level", "subject")
"""Keys of `Problem.meta` for which scores are broken down."""
MAX_PARTS = 50
"""A key with more values than this gets no breakdown."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts over the completions of one problem."""

    judged: int
    correct: int
    wrong: tuple[int, ...]
    """Number of completions for each wrong answer, sorted: the same counts recur, and their scores are cached."""
    silent: int
    shares: Mapping[str, float]
    """The `outcome_shares` of all completions."""
    mean_tokens: float
    mean_reward: float
    """NaN if none could be judged."""


def tally(scored: ScoredGroup, marks: Sequence[AnswerMark]) -> Tally:
    rollouts = scored.group.rollouts
    judged = [(rollout, score) for rollout, score in zip(rollouts, scored.scores, strict=True) if not score.is_error]
    others = [rollout.text for rollout, score in judged if score.verdict is not Verdict.CORRECT]
    answers = [answer for answer in (_answer(text, marks) for text in others) if answer is not None]
    return Tally(
        judged=len(judged),
        correct=len(judged) - len(others),
        wrong=tuple(sorted(Counter(answers).values())),
        silent=len(others) - len(answers),
        shares=outcome_shares(rollouts, scored.scores),
        mean_tokens=mean([len(rollout.token_ids) for rollout in rollouts]),
        mean_reward=mean([score.reward for _, score in judged]),
    )


def outcome_shares(rollouts: Sequence[Rollout], scores: Sequence[Score]) -> dict[str, float]:
    """Return the shares of completions that were cut off, had no answer, or could not be judged."""
    verdicts = (Verdict.UNPARSED, Verdict.ERROR, Verdict.TIMED_OUT)
    shares = {f"{verdict}_share": mean([score.verdict is verdict for score in scores]) for verdict in verdicts}
    return {"truncated_share": mean([rollout.finish is Finish.LENGTH for rollout in rollouts])} | shares


def _answer(text: str, marks: Sequence[AnswerMark]) -> str | None:
    found = final_answer(text, marks)
    # A text that is too long for an answer has no normal form, but still differs from all others.
    return None if found is None else normalize(found.text) or found.text.strip()


def score_groups(
    groups: Sequence[ScoredGroup], *, n: int, ks: Sequence[int], marks: Sequence[AnswerMark]
) -> tuple[dict[str, Estimate], dict[str, dict[str, Scores]]]:
    """Return scores over all groups, and by level and subject if the problems have them.

    `n`: completions per problem. `ks`: in ascending order. `marks`: where the task looks for answers.
    """
    # Sorted by id, because the order of completion must not change a bootstrap.
    ordered = sorted(groups, key=lambda scored: scored.group.prompt.problem.id)
    tallies = [tally(scored, marks) for scored in ordered]
    # Without marked answers (programs, queries) there is no majority.
    has_votes = any(entry.wrong for entry in tallies) or any(
        score.verdict is Verdict.CORRECT and final_answer(rollout.text, marks) is not None
        for scored in ordered
        for rollout, score in zip(scored.group.rollouts, scored.scores, strict=True)
    )
    scores = summarize(tallies, n=n, ks=ks, has_votes=has_votes)
    by: dict[str, dict[str, Scores]] = {}
    for kind in BREAKDOWNS:
        parts: dict[str, list[Tally]] = {}
        for scored, entry in zip(ordered, tallies, strict=True):
            key = scored.group.prompt.problem.meta.get(kind)
            if key is not None:
                parts.setdefault(str(key), []).append(entry)
        if 1 < len(parts) <= MAX_PARTS:
            ordered_keys = sorted(parts, key=_by_number)
            by[kind] = {key: summarize(parts[key], n=n, ks=ks, has_votes=has_votes) for key in ordered_keys}
    return scores, by


def _by_number(key: str) -> tuple[int, int, str]:
    """Sort levels by number and names by the alphabet."""
    return (0, int(key), "") if key.isdecimal() else (1, 0, key)


def summarize(tallies: Sequence[Tally], *, n: int, ks: Sequence[int], has_votes: bool) -> dict[str, Estimate]:
    def passing(k: int) -> Estimate:
        return share_estimate([pass_at_k(t.judged, t.correct, k) for t in tallies if t.judged >= k], len(tallies))

    def majority(k: int) -> Estimate:
        values = [majority_at_k(t.correct, t.wrong, t.silent, k) for t in tallies if t.judged >= k]
        return share_estimate(values, len(tallies))

    scores = {f"pass@{k}": passing(k) for k in ks}
    if has_votes:
        scores |= {f"maj@{k}": majority(k) for k in ks if k > 1}
    if n > 1:
        scores[f"best_of_{n}_by_verifier"] = passing(n)
        if has_votes:
            scores[f"best_of_{n}_by_majority"] = majority(n)
    for name in tallies[0].shares:
        scores[name] = share_estimate([t.shares[name] for t in tallies], len(tallies))
    scores["mean_tokens"] = mean_estimate([t.mean_tokens for t in tallies], len(tallies))
    scores["mean_reward"] = mean_estimate([t.mean_reward for t in tallies if t.judged], len(tallies))
    return scores


def share_estimate(values: Sequence[float], num_problems: int) -> Estimate:
    """Return the mean of values between 0 and 1, one per problem; problems without a value are left out."""
    left_out = num_problems - len(values)
    if all(value in (0.0, 1.0) for value in values):
        low, high = wilson_interval(sum(values), len(values))
        return Estimate(mean(values), low, high, len(values), "wilson", left_out)
    return Estimate(mean(values), *mean_interval(values), len(values), "plus_four", left_out)


def mean_estimate(values: Sequence[float], num_problems: int) -> Estimate:
    """Return the mean of any values in the same way."""
    return Estimate(mean(values), *bootstrap_interval(values), len(values), "bootstrap", num_problems - len(values))


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Return the probability that at least one of k of these n completions is correct: 1 - C(n-c, k) / C(n, k).

    Chen et al. 2021 (arXiv:2107.03374), eq. 1: unbiased for k fresh completions. At k = n: whether any is correct.
    """
    _check(n, k)
    return float(1 - Fraction(math.comb(n - correct, k), math.comb(n, k)))


@lru_cache(maxsize=65536)
def majority_at_k(correct: int, wrong: tuple[int, ...], silent: int, k: int) -> float:
    """Return the probability that the most common answer among k of these completions is the right one.

    `correct` completions give the right answer, `wrong` has the number for each wrong answer, and `silent` ones give
    none and do not vote. Among t + 1 answers that are equally common, the right one wins with probability 1 / (t + 1).

    Exact, by counting subsets: for each number j of right votes the product over the wrong answers of
    Σ_{i<j} C(m, i) xⁱ + C(m, j) y xʲ, in which x counts the drawn and y the tied; then the coefficient of x^(k-j).
    """
    _check(correct + sum(wrong) + silent, k)
    total = Fraction(0)
    for votes in range(1, min(correct, k) + 1):
        # ways[(drawn, tied)]: number of subsets of the answers processed so far.
        ways = {(drawn, 0): math.comb(silent, drawn) for drawn in range(min(silent, k - votes) + 1)}
        for size in wrong:
            grown: dict[tuple[int, int], int] = {}
            for (drawn, tied), count in ways.items():
                for more in range(min(size, votes, k - votes - drawn) + 1):
                    key = (drawn + more, tied + (more == votes))
                    grown[key] = grown.get(key, 0) + count * math.comb(size, more)
            ways = grown
        right = math.comb(correct, votes)
        for (drawn, tied), count in ways.items():
            if drawn == k - votes:
                total += Fraction(right * count, tied + 1)
    return float(total / math.comb(correct + sum(wrong) + silent, k))


def _check(n: int, k: int) -> None:
    if not 1 <= k <= n:
        raise ValueError(f"k = {k}: must be from 1 to n = {n}")
