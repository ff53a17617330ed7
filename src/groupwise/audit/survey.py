"""Goes through the rollouts of a run once and says what it found: `audit_run`.

Contract: reads only; one step's rollouts in memory at a time; the same seed and run give the same audit. Examples and
the chains for people are uniform draws (the chains by verdict, so that rare verdicts are there), whatever the length of
the run.
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
from groupwise.audit.chains import Chain, Reservoir, Source, groups_of, make_chain, prompt_text, spread_evenly
from groupwise.audit.held_out_gain import HeldOutGain, evaluates_greedily, held_out_gains
from groupwise.runs.reader import Run
from groupwise.types import ScoredGroup, Verdict

FORMAT = "groupwise-audit/1"


class AuditError(ValueError):
    """An audit that cannot be made. The message names what was asked for and the way out."""


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
    """How many rollouts have each verdict."""
    findings: tuple[AuditFinding, ...]
    gains: tuple[HeldOutGain, ...]
    chains: tuple[Chain, ...]
    """For people to label, in a random order."""

    def to_json(self) -> dict[str, Any]:
        """All of it, by JSON types; the chains too."""
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
    """`sample`: chains for people, spread over the verdicts. `num_examples`: of each finding."""
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
    """By digest: what was written for which problem, to find the same text for another one."""

    def __post_init__(self) -> None:
        self.tallies = {
            check.name: _Tally(Reservoir(self.num_examples, f"{self.seed}/{check.name}")) for check in CHECKS
        }
        self.strata = {verdict: Reservoir(self.sample, f"{self.seed}/{verdict.value}") for verdict in Verdict}

    def look_at(self, step: int, group_number: int, scored: ScoredGroup) -> None:
        problem_id, prompt = scored.group.prompt.problem.id, prompt_text(scored)
        self.problems.add(problem_id)
        copies = Counter(rollout.text for rollout in scored.group.rollouts)
        readings: dict[str, Reading] = {}
        for number, (rollout, score) in enumerate(zip(scored.group.rollouts, scored.scores, strict=True)):
            text = rollout.text
            if text not in readings:
                readings[text] = read_completion(prompt, text)
            other = self.other_problem(text, problem_id)
            subject = AuditSubject(score, readings[text], copies[text], other, len(text))
            self.num_rollouts += 1
            self.tell(step, problem_id, number, subject, text)
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
        # Those that came before it, when nothing was known of this one, are counted now.
        seen.is_shared = True
        self.tallies["same_for_other_problem"].count += seen.count - 1
        return seen.problem_id

    def findings(self) -> tuple[AuditFinding, ...]:
        made = []
        for check in CHECKS:
            tally = self.tallies[check.name]
            made.append(make_finding(check, tally.count, tally.total, tally.examples.items()))
        return tuple(made)

    def chains(self, sample: int, seed: int) -> tuple[Chain, ...]:
        strata = [self.strata[verdict].items() for verdict in Verdict]
        shares = spread_evenly(sample, [len(chains) for chains in strata])
        drawn = []
        for chains, share in zip(strata, shares, strict=True):
            chains.sort(key=lambda chain: _order(seed, chain))
            drawn += chains[:share]
        # Mixed, so that a person does not learn the verdict from the place.
        return tuple(sorted(drawn, key=lambda chain: _order(seed, chain)))


def _order(seed: int, chain: Chain) -> bytes:
    return hashlib.sha256(f"{seed}/{chain.id}".encode()).digest()
