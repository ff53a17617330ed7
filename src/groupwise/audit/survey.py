"""One pass over the rollouts of a run: `audit_run`.

Contract: reads only; one step's rollouts in memory at a time; the same seed and run give the same audit. Examples and
chains for people are uniform samples, the chains per verdict so that rare verdicts are included.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from groupwise.audit.answers import Reading, read_completion
from groupwise.audit.audit_checks import (
    CHECKS,
    MIN_SHARED_CHARS,
    AuditExample,
    AuditFinding,
    AuditSubject,
    make_example,
    make_finding,
)
from groupwise.audit.chains import Chain, Reservoir, Source, groups_of, make_chain, spread_evenly
from groupwise.audit.held_out_gain import HeldOutGain, evaluates_greedily, held_out_gains
from groupwise.runs.reader import Run
from groupwise.types import ScoredGroup, Verdict

FORMAT = "groupwise-audit/1"


class AuditError(ValueError):
    """An audit that cannot be made; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Audit:
    run: str
    source: Source
    seed: int
    first_step: int
    last_step: int
    num_rollouts: int
    num_problems: int
    verdicts: dict[str, int]
    """Number of rollouts with each verdict."""
    findings: tuple[AuditFinding, ...]
    gains: tuple[HeldOutGain, ...]
    chains: tuple[Chain, ...]
    """For people to label, in a random order."""

    def to_json(self) -> dict[str, Any]:
        names = ("run", "source", "seed", "first_step", "last_step", "num_rollouts", "num_problems", "verdicts")
        return {
            "format": FORMAT,
            **{name: getattr(self, name) for name in names},
            "findings": [finding.to_json() for finding in self.findings],
            "held_out_gains": [gain.to_json() for gain in self.gains],
            "chains": [chain.to_json() for chain in self.chains],
        }


def audit_run(
    run_dir: Path, *, sample: int = 30, seed: int = 0, num_examples: int = 5, source: Source = "train"
) -> Audit:
    """Audit a run with `sample` chains for people, spread over the verdicts, and `num_examples` per finding."""
    for name, value in (("sample", sample), ("num_examples", num_examples)):
        if value < 0:
            raise AuditError(f"{name} = {value}: use 0 or more")
    if source not in ("train", "held_out"):
        raise AuditError(f"source = {source!r}: use 'train' or 'held_out'")
    run = Run(run_dir)
    survey = _Survey(source, sample, seed, num_examples)
    steps = []
    for step, groups in groups_of(run, source):
        steps.append(step)
        for group_number, scored in enumerate(groups):
            survey.look_at(step, group_number, scored)
    if not survey.num_rollouts:
        folder = "rollouts" if source == "train" else "eval_rollouts"
        raise AuditError(f"{run.path} keeps no {folder}: there is nothing to audit; train with rollouts kept")
    return Audit(
        run=run.name,
        source=source,
        seed=seed,
        first_step=steps[0],
        last_step=steps[-1],
        num_rollouts=survey.num_rollouts,
        num_problems=len(survey.problems),
        verdicts={verdict.value: survey.strata[verdict].num_offered for verdict in Verdict},
        findings=survey.findings(),
        gains=held_out_gains(run.steps(), run.evals(), evaluates_greedily(run.recipe_if_any)),
        chains=survey.chains(sample, seed),
    )


@dataclass(slots=True)
class _Tally:
    examples: Reservoir[AuditExample]
    count: int = 0
    total: int = 0


@dataclass(slots=True)
class _LongText:
    problem_id: str
    count: int = 0
    is_shared: bool = False


@dataclass(slots=True)
class _Survey:
    source: Source
    sample: int
    seed: int
    num_examples: int
    num_rollouts: int = 0
    problems: set[str] = field(default_factory=set)
    tallies: dict[str, _Tally] = field(init=False)
    strata: dict[Verdict, Reservoir[Chain]] = field(init=False)
    long_texts: dict[bytes, _LongText] = field(default_factory=dict)
    """By digest of the text: the problem that it was written for, to find the same text for another one."""

    def __post_init__(self) -> None:
        self.tallies = {
            check.name: _Tally(Reservoir(self.num_examples, f"{self.seed}/{check.name}")) for check in CHECKS
        }
        self.strata = {verdict: Reservoir(self.sample, f"{self.seed}/{verdict.value}") for verdict in Verdict}

    def look_at(self, step: int, group_number: int, scored: ScoredGroup) -> None:
        problem = scored.group.prompt.problem
        self.problems.add(problem.id)
        copies = Counter(rollout.text for rollout in scored.group.rollouts)
        readings: dict[str, Reading] = {}
        for number, (rollout, score) in enumerate(zip(scored.group.rollouts, scored.scores, strict=True)):
            text = rollout.text
            if text not in readings:
                readings[text] = read_completion(problem.prompt_text, text)
            other = self.other_problem(text, problem.id)
            subject = AuditSubject(score, readings[text], copies[text], other, len(text))
            self.num_rollouts += 1
            self.tell(step, problem.id, number, subject, text)
            self.strata[score.verdict].offer(partial(make_chain, self.source, step, group_number, scored, number))

    def tell(self, step: int, problem_id: str, number: int, subject: AuditSubject, text: str) -> None:
        for check in CHECKS:
            if not check.asks(subject):
                continue
            tally = self.tallies[check.name]
            tally.total += 1
            if evidence := check.evidence(subject):
                tally.count += 1
                tally.examples.offer(partial(make_example, step, problem_id, number, subject, evidence, text))

    def other_problem(self, text: str, problem_id: str) -> str:
        if len(text) < MIN_SHARED_CHARS:
            return ""
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:16]
        seen = self.long_texts.setdefault(digest, _LongText(problem_id))
        seen.count += 1
        if seen.is_shared or seen.problem_id == problem_id:
            return seen.problem_id if seen.is_shared else ""
        # Count the earlier copies now: they were seen before this one.
        seen.is_shared = True
        self.tallies["same_for_other_problem"].count += seen.count - 1
        return seen.problem_id

    def findings(self) -> tuple[AuditFinding, ...]:
        tallies = [(check, self.tallies[check.name]) for check in CHECKS]
        return tuple(make_finding(check, tally.count, tally.total, tally.examples.items()) for check, tally in tallies)

    def chains(self, sample: int, seed: int) -> tuple[Chain, ...]:
        strata = [self.strata[verdict].items() for verdict in Verdict]
        shares = spread_evenly(sample, [len(chains) for chains in strata])
        sampled = []
        for chains, share in zip(strata, shares, strict=True):
            chains.sort(key=lambda chain: _order(seed, chain))
            sampled += chains[:share]
        # Shuffled, so that the position does not reveal the verdict.
        return tuple(sorted(sampled, key=lambda chain: _order(seed, chain)))


def _order(seed: int, chain: Chain) -> bytes:
    return hashlib.sha256(f"{seed}/{chain.id}".encode()).digest()
