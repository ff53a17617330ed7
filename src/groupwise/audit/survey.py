"""One pass over the rollouts of a run: `audit_run`.

Contract: reads only; one step's rollouts in memory at a time; the same seed and run give the same audit. Examples and
chains for people are uniform samples, the chains per verdict so that rare verdicts are included.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from groupwise.audit.answers import read_completion
from groupwise.audit.audit_checks import CHECKS, MIN_SHARED_CHARS, AuditSubject
from groupwise.audit.held_out_gain import HeldOutGain, evaluates_greedily, held_out_gains
from groupwise.base.stats import wilson_interval
from groupwise.base.text_layout import percent
from groupwise.rewards.format import excerpt
from groupwise.runs.reader import Run
from groupwise.types import ScoredGroup, Verdict

FORMAT = "groupwise-audit/1"
EXCERPT_CHARS = 200
NUM_EXAMPLES = 5
"""Examples per finding."""

T = TypeVar("T")

Source = Literal["train", "held_out"]


class AuditError(ValueError):
    """An audit that cannot be made; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A completion with everything that a person needs to judge it."""

    source: Source
    step: int
    group_number: int
    """Its line in the step's file, from 0."""
    rollout_number: int
    """Its place in the group, from 0."""
    problem_id: str
    prompt: str
    completion: str
    gold: str
    finish: str
    verdict: Verdict
    reward: float
    """What the learner saw."""
    parts: Mapping[str, float]
    """Parts of the score, before any weighting."""
    verifier: str
    detail: str

    @property
    def id(self) -> str:
        """Place and text. Labels are stored under it, so resampled text does not inherit the labels of other text."""
        text = f"{self.problem_id}\0{self.prompt}\0{self.completion}"
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        return f"{self.source}-{self.step}-{self.group_number}-{self.rollout_number}-{digest}"

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, **asdict(self), "verdict": self.verdict.value}


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
    """The completions that the check covers, in words."""
    count: int
    total: int
    low: float
    high: float
    """`low` to `high` is the 95 % interval of the share (Wilson). It treats completions as independent, which rollouts
    of one group are not, so it is too narrow."""
    examples: tuple[AuditExample, ...]

    @property
    def share(self) -> float:
        return self.count / self.total if self.total else 0.0

    @property
    def words(self) -> tuple[str, str, str, str]:
        """Count, covered completions, share and interval, as people read them."""
        known = (percent(self.share), f"{percent(self.low)} to {percent(self.high)}") if self.total else ("", "")
        return f"{self.count:,}", f"{self.total:,} {self.of}", *known

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "share": self.share}


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
    held_out_gains: tuple[HeldOutGain, ...]
    chains: tuple[Chain, ...]
    """For people to label, in a random order."""

    def to_json(self) -> dict[str, Any]:
        table = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        lists = {name: [entry.to_json() for entry in table[name]] for name in ("findings", "held_out_gains", "chains")}
        return {"format": FORMAT} | table | lists


def audit_run(run_dir: Path, *, sample: int = 30, seed: int = 0, source: Source = "train") -> Audit:
    """Audit a run, with `sample` chains for people, spread over the verdicts."""
    if sample < 0:
        raise AuditError(f"sample = {sample}: use 0 or more")
    if source not in ("train", "held_out"):
        raise AuditError(f"source = {source!r}: use 'train' or 'held_out'")
    run = Run(run_dir)
    survey = _Survey(source, sample, seed)
    steps = run.rollout_steps() if source == "train" else run.eval_rollout_steps()
    for step in steps:
        for group_number, scored in enumerate(groups_at(run, source, step)):
            survey.look_at(step, group_number, scored)
    verdicts = {verdict.value: survey.strata[verdict].num_offered for verdict in Verdict}
    if not any(verdicts.values()):
        folder = "rollouts" if source == "train" else "eval_rollouts"
        raise AuditError(f"{run.path} keeps no {folder}: there is nothing to audit; train with rollouts kept")
    return Audit(
        run=run.name,
        source=source,
        seed=seed,
        first_step=steps[0],
        last_step=steps[-1],
        num_rollouts=sum(verdicts.values()),
        num_problems=len(survey.problems),
        verdicts=verdicts,
        findings=survey.findings(),
        held_out_gains=held_out_gains(run.steps(), run.evals(), evaluates_greedily(run.recipe_if_any)),
        chains=survey.chains(),
    )


def groups_at(run: Run, source: Source, step: int) -> list[ScoredGroup]:
    return run.rollouts(step) if source == "train" else run.eval_rollouts(step)


def make_chain(source: Source, step: int, group_number: int, scored: ScoredGroup, number: int) -> Chain:
    problem, score, rollout = scored.group.prompt.problem, scored.scores[number], scored.group.rollouts[number]
    return Chain(
        source=source,
        step=step,
        group_number=group_number,
        rollout_number=number,
        problem_id=problem.id,
        prompt=problem.prompt_text,
        completion=rollout.text,
        gold=problem.answer,
        finish=rollout.finish.value,
        verdict=score.verdict,
        reward=scored.rewards[number],
        parts=dict(score.parts),
        verifier=score.verifier,
        detail=score.detail,
    )


class Reservoir(Generic[T]):
    """A uniform sample of at most `size` items of a stream of unknown length (Vitter 1985, algorithm R)."""

    def __init__(self, size: int, seed: str) -> None:
        self.size = size
        self.num_offered = 0
        self.kept: list[tuple[int, T]] = []
        self._random = random.Random(seed)

    def offer(self, make: Callable[[], T]) -> None:
        """Count an item; `make` is called only if it is sampled."""
        self.num_offered += 1
        if len(self.kept) < self.size:
            self.kept.append((self.num_offered, make()))
        elif self.size:
            place = self._random.randrange(self.num_offered)
            if place < self.size:
                self.kept[place] = (self.num_offered, make())

    def items(self) -> list[T]:
        """Return the sample in the order of the stream."""
        return [item for _, item in sorted(self.kept, key=lambda pair: pair[0])]


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


class _Survey:
    def __init__(self, source: Source, sample: int, seed: int) -> None:
        self.source, self.sample, self.seed = source, sample, seed
        self.problems: set[str] = set()
        self.tallies = {check.name: _Tally(Reservoir(NUM_EXAMPLES, f"{seed}/{check.name}")) for check in CHECKS}
        self.strata: dict[Verdict, Reservoir[Chain]] = {
            verdict: Reservoir(sample, f"{seed}/{verdict.value}") for verdict in Verdict
        }
        self.long_texts: dict[bytes, _LongText] = {}
        """By digest of the text: the problem that it was written for, to find the same text for another one."""

    def look_at(self, step: int, group_number: int, scored: ScoredGroup) -> None:
        problem = scored.group.prompt.problem
        self.problems.add(problem.id)
        texts = [rollout.text for rollout in scored.group.rollouts]
        copies = Counter(texts)
        readings = {text: read_completion(problem.prompt_text, text) for text in copies}
        for number, (text, score) in enumerate(zip(texts, scored.scores, strict=True)):
            other = self.other_problem(text, problem.id)
            subject = AuditSubject(score, readings[text], copies[text], other, len(text))
            self.check(step, problem.id, number, subject, text)
            self.strata[score.verdict].offer(partial(make_chain, self.source, step, group_number, scored, number))

    def check(self, step: int, problem_id: str, number: int, subject: AuditSubject, text: str) -> None:
        for check in CHECKS:
            if not check.population.includes(subject):
                continue
            tally = self.tallies[check.name]
            tally.total += 1
            if evidence := check.evidence(subject):
                tally.count += 1
                shown = (subject.score.verdict.value, excerpt(evidence, EXCERPT_CHARS), excerpt(text, EXCERPT_CHARS))
                tally.examples.offer(partial(AuditExample, step, problem_id, number, *shown))

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
        findings = []
        for check in CHECKS:
            tally = self.tallies[check.name]
            low, high = wilson_interval(tally.count, tally.total)
            named = (check.name, check.title, check.population.name)
            findings.append(AuditFinding(*named, tally.count, tally.total, low, high, tuple(tally.examples.items())))
        return tuple(findings)

    def chains(self) -> tuple[Chain, ...]:
        strata = [self.strata[verdict].items() for verdict in Verdict]
        sampled = []
        for chains, share in zip(strata, spread_evenly(self.sample, list(map(len, strata))), strict=True):
            sampled += sorted(chains, key=self._order)[:share]
        # Shuffled, so that the position does not reveal the verdict.
        return tuple(sorted(sampled, key=self._order))

    def _order(self, chain: Chain) -> bytes:
        return hashlib.sha256(f"{self.seed}/{chain.id}".encode()).digest()


def spread_evenly(total: int, available: Sequence[int]) -> list[int]:
    """Split `total` as evenly as the available counts allow, so that people see the rare verdicts."""
    shares = [0] * len(available)
    left = min(total, sum(available))
    while left:
        open_places = [index for index, count in enumerate(available) if shares[index] < count]
        even = max(1, left // len(open_places))
        for index in open_places[:left]:
            extra = min(even, available[index] - shares[index])
            shares[index] += extra
            left -= extra
    return shares
