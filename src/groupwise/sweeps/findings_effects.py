"""Findings beyond the final score: dead arms, speed, side effects, seeds that disagree, runs that collapsed or failed.

Contract:

- Speed: the final scores of two arms are statistically indistinguishable, but their scores differ significantly at the
  evaluation at which the faster one reached the target.
- Side effect: a quantity is several times that of the baseline arm, consistently over seeds (with one seed: over the
  last steps of both runs), and the score is no better. Or rollouts earn a fraction of the baseline's reward, and the
  score does not show it.
- Spread: Fisher's F over seeds is significant.

Each kind is adjusted by Holm within the knob. Dead arms, collapses and failures are counted, not tested.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from groupwise.base.stats import holm, mean
from groupwise.base.text_layout import percent, shortened
from groupwise.runs.records import has_no_gradient
from groupwise.sweeps.arm_scores import (
    CLIP,
    GRAD_NORM,
    KL_FROM_REFERENCE,
    REWARD,
    ArmScore,
    Shares,
    best_of,
    steps_to,
    tail_values,
)
from groupwise.sweeps.compare_arms import (
    ALPHA,
    ArmComparison,
    KnobScores,
    adjusted,
    compare,
    problems_interval,
    seed_test,
    shared_spread,
    spread_tests,
)
from groupwise.sweeps.findings_words import (
    MAX_REASON_CHARS,
    SweepFinding,
    knob_words,
    listed,
    percent_range,
    rounded,
    seeds_words,
    short_label,
    subject,
)
from groupwise.sweeps.folder import gap_words
from groupwise.sweeps.sweep_records import Knob, RunStatus, SeedRun

SIDE_EFFECT_RATIO = 3.0
COLLAPSE_SHARE = 0.5
COLLAPSE_Z = 3.0
"""Standard deviations over problems: the best evaluation is the maximum of many, which biases it upwards."""


@dataclass(frozen=True, slots=True)
class Quantity:
    metric: str
    words: str
    floor: float
    """Values below it do not matter, however large the ratio."""
    is_share: bool = False
    is_good: bool = False
    """More is better: the finding is a fraction of the baseline, not a multiple."""


def speed_findings(scores: KnobScores) -> list[SweepFinding]:
    """Compare the baseline arm with arms whose final scores are statistically indistinguishable from it."""
    if len(scores.arms) < 2:
        return []
    reference = scores.reference
    alike = {scores.best.name, *(arm.name for arm in scores.tied)}
    found: list[tuple[ArmScore, ArmComparison]] = []
    num_looks = 1
    for arm in scores.arms:
        if arm.name == reference.name or not {arm.name, reference.name} <= alike:
            continue
        if scores.pairs[arm.name, reference.name].is_clear:
            continue
        faster, slower = sorted((arm, reference), key=lambda one: one.steps_to(scores.target))
        if faster.steps_to(scores.target) == slower.steps_to(scores.target):
            continue
        steps = _shared_steps(faster, slower)
        crossing = [step for step in steps if step >= faster.steps_to(scores.target)]
        if not crossing:
            continue
        first, second = faster.at(crossing[0]), slower.at(crossing[0])
        if first is None or second is None:
            continue
        num_looks = max(num_looks, len(steps))
        at_step = [shares for one in scores.arms if one.name in alike and (shares := one.at(crossing[0])) is not None]
        found.append((arm, compare((faster.name, slower.name), first, second, shared_spread(at_step))))
    tested = adjusted([one for _, one in found], num_looks)
    return [
        _speed_finding(scores, arm, one)
        for (arm, _), one in zip(found, tested, strict=True)
        if one.is_clear and one.difference > 0
    ]


def _shared_steps(first: ArmScore, second: ArmScore) -> list[int]:
    """Return the evaluation steps that all seeds of both arms have, without step 0 and the last one."""
    sets = [{record.step for record in run.evals} for arm in (first, second) for run in arm.runs]
    return sorted(set.intersection(*sets) - {0})[:-1]


def _speed_finding(scores: KnobScores, arm: ArmScore, one: ArmComparison) -> SweepFinding:
    reference = scores.reference
    is_faster = one.first == arm.name
    steps = [steps_words(scores, each) for each in (arm, reference)]
    sentence = (
        f"{subject(scores.knob, [arm])} reaches {percent(scores.target)} in {'fewer' if is_faster else 'more'} "
        f"steps than {short_label(reference)}: {steps[0]} against {steps[1]} (median); final scores are "
        f"statistically indistinguishable; {seeds_words([arm, reference])}."
    )
    figures = {
        "target": scores.target,
        "steps_by_seed": {
            each.name: {run.seed: steps_to(run, scores.target) for run in each.runs} for each in (arm, reference)
        },
        "comparisons": [one],
    }
    return SweepFinding("speed", scores.knob.name, sentence, (arm.name, reference.name), figures)


def steps_words(scores: KnobScores, arm: ArmScore) -> str:
    steps = arm.steps_to(scores.target)
    if scores.target == 0:
        return "–"
    return "not reached" if math.isinf(steps) else f"{steps:g} steps"


def side_effect_findings(scores: KnobScores) -> list[SweepFinding]:
    kl_words = "KL from the reference" if scores.kl_metric == KL_FROM_REFERENCE else "KL of a step's updates"
    quantities = (
        Quantity(scores.kl_metric, kl_words, 1e-3),
        Quantity(CLIP, "clip share", 0.005, is_share=True),
        Quantity(GRAD_NORM, "gradient norm", 0.0),
        Quantity(REWARD, "rollout reward", 0.0, is_good=True),
    )
    return [finding for quantity in quantities for finding in _side_effects(scores, quantity)] if scores.arms else []


def _side_effects(scores: KnobScores, quantity: Quantity) -> list[SweepFinding]:
    reference = scores.reference
    level = mean(reference.tail(quantity.metric).values())
    arms = [arm for arm in scores.arms if arm.name != reference.name and arm.tail(quantity.metric)]
    if not math.isfinite(level) or not arms:
        return []
    pairs = [(reference, arm) if quantity.is_good else (arm, reference) for arm in arms]
    p_values = holm([_excess_p(above, below, quantity.metric) for above, below in pairs])
    found: dict[str, list[tuple[ArmScore, float, float]]] = {}
    for arm, p in zip(arms, p_values, strict=True):
        value = mean(arm.tail(quantity.metric).values())
        against = scores.pairs[arm.name, reference.name]
        high, low = (level, value) if quantity.is_good else (value, level)
        if p < ALPHA and high > quantity.floor and high >= SIDE_EFFECT_RATIO * low:
            if not against.is_clear:
                found.setdefault("while scores are statistically indistinguishable", []).append((arm, value, p))
            elif against.difference < 0 and not quantity.is_good:
                found.setdefault("and a worse score", []).append((arm, value, p))
    return [_side_effect_finding(scores, quantity, level, end, arms_of_end) for end, arms_of_end in found.items()]


def _excess_p(arm: ArmScore, reference: ArmScore, metric: str) -> float:
    """Return the p-value of `arm` being above `reference`, over seeds if there are several."""
    first, second = arm.tail(metric), reference.tail(metric)
    if all(value > 0 for value in (*first.values(), *second.values())):
        # Positive quantities vary in proportion to their size.
        first = {seed: math.log(value) for seed, value in first.items()}
        second = {seed: math.log(value) for seed, value in second.items()}
    test = seed_test(first, second)
    if test is not None:
        return test.p if mean(first.values()) > mean(second.values()) else 1.0
    (run,), (other,) = arm.runs, reference.runs
    return 0.0 if min(tail_values(run.steps, metric)) > max(tail_values(other.steps, metric)) else 1.0


def _side_effect_finding(
    scores: KnobScores, quantity: Quantity, level: float, end: str, found: Sequence[tuple[ArmScore, float, float]]
) -> SweepFinding:
    reference = scores.reference
    arms = [arm for arm, _, _ in found]
    values = [value for _, value, _ in found]
    shown = percent if quantity.is_share else rounded
    times = "" if level <= 0 else f" ({_reach([value / level for value in values], rounded)} times as much)"
    sentence = (
        f"{subject(scores.knob, arms)} ends with a {quantity.words} of {_reach(values, shown)} "
        f"against {shown(level)} at {short_label(reference)}{times}, {end}; {seeds_words([*arms, reference])}."
    )
    figures = {
        "metric": quantity.metric,
        "reference": reference.name,
        "by_seed": {arm.name: arm.tail(quantity.metric) for arm in (*arms, reference)},
        "p_adjusted": {arm.name: p for arm, _, p in found},
    }
    return SweepFinding("side_effect", scores.knob.name, sentence, tuple(arm.name for arm in arms), figures)


def _reach(values: Sequence[float], shown: Callable[[float], str]) -> str:
    """Return the smallest and the largest value, or one if both read the same."""
    return " to ".join(dict.fromkeys(shown(value) for value in (min(values), max(values))))


def spread_findings(scores: KnobScores) -> list[SweepFinding]:
    """Report arms whose seeds vary much more than those of the others."""
    arms = [arm for arm in scores.arms if len(arm.runs) > 1]
    findings = []
    for arm, test in zip(arms, spread_tests([arm.final for arm in arms]), strict=True):
        if test.is_unstable:
            ratio, values = test.ratio, arm.final.by_seed.values()
            sentence = (
                f"{subject(scores.knob, [arm])}: seeds disagree ({percent_range(values)}); their spread is "
                f"{rounded(ratio)} times that of the other values; {seeds_words([arm])}."
            )
            figures = {
                "ratio": ratio,
                "p_adjusted": test.p_adjusted,
                "final_by_seed": {one.name: one.final.by_seed for one in arms},
            }
            findings.append(SweepFinding("spread", scores.knob.name, sentence, (arm.name,), figures))
    return findings


def dead_findings(scores: KnobScores) -> list[SweepFinding]:
    """Report arms in which no RL step of any seed had a gradient."""
    dead = [arm for arm in scores.arms if all(_is_dead(run) for run in arm.runs)]
    if not dead:
        return []
    sentence = (
        f"{subject(scores.knob, dead)} did not learn: no RL step had a gradient, since all rewards of each group were "
        f"equal; {seeds_words(dead)}."
    )
    return [SweepFinding("dead", scores.knob.name, sentence, tuple(arm.name for arm in dead), {})]


def _is_dead(run: SeedRun) -> bool:
    rl_steps = [record for record in run.steps if "groups/signal_share" in record.metrics]
    return bool(rl_steps) and all(has_no_gradient(record) for record in rl_steps)


def collapse_findings(knob: Knob) -> list[SweepFinding]:
    findings = []
    for arm in knob.arms:
        for run in arm.runs:
            if len(run.evals) < 2:
                continue
            best, last = best_of(run), run.evals[-1]
            ends = [Shares({run.seed: record.pass_at_1}, record.num_problems) for record in (last, best)]
            _, high = problems_interval(ends[0], ends[1], COLLAPSE_Z)
            if last.pass_at_1 < COLLAPSE_SHARE * best.pass_at_1 and high < 0:
                sentence = (
                    f"{subject(knob, [arm])}, seed {run.seed}, collapsed: from {percent(best.pass_at_1)} at step "
                    f"{best.step} to {percent(last.pass_at_1)} at step {last.step}."
                )
                figures = {
                    "seed": run.seed,
                    "best": {"step": best.step, "value": best.pass_at_1},
                    "last": {"step": last.step, "value": last.pass_at_1},
                }
                findings.append(SweepFinding("collapsed", knob.name, sentence, (arm.name,), figures))
    return findings


def gap_findings(knob: Knob) -> list[SweepFinding]:
    """Report failed runs, one sentence per arm, and unfinished runs, all in one sentence."""
    findings = []
    waiting: dict[str, list[int]] = {}
    parts = []
    for arm in knob.arms:
        broken = [run for run in arm.runs if run.status in (RunStatus.FAILED, RunStatus.DAMAGED)]
        if broken:
            is_only = len(arm.runs) == 1
            words = shortened(gap_words(broken[-1]), MAX_REASON_CHARS)
            sentence = (
                f"{subject(knob, [arm])} failed with "
                f"{'its only seed' if is_only else f'{len(broken)} of {len(arm.runs)} seeds'}: "
                f"seed {broken[-1].seed} {words}."
            )
            figures = {"seeds": [run.seed for run in broken], "statuses": [run.status.value for run in broken]}
            findings.append(SweepFinding("failed", knob.name, sentence, (arm.name,), figures))
        seeds = [run.seed for run in arm.runs if run.status in (RunStatus.UNFINISHED, RunStatus.MISSING)]
        if seeds:
            waiting[arm.name] = seeds
            parts.append(f"{short_label(arm)} (seed{'' if len(seeds) == 1 else 's'} {listed(list(map(str, seeds)))})")
    if waiting:
        sentence = f"{knob_words(knob)}: not finished: {listed(parts)}; scores are from finished runs only."
        findings.append(SweepFinding("unfinished", knob.name, sentence, tuple(waiting), {"seeds": waiting}))
    return findings
