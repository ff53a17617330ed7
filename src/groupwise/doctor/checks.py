"""Every disease that the doctor knows, by name. A new one: a function from a chart to a finding, and a line here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from groupwise.doctor import course_checks, policy_checks, sampling_checks
from groupwise.doctor.chart import StageHistory
from groupwise.doctor.finding import Finding


class Disease(NamedTuple):
    title: str
    find: Callable[[StageHistory], Finding | None]
    explains: frozenset[str] = frozenset()
    """Diseases that follow from it, and whose own advice would lead astray."""


DISEASES: Mapping[str, Disease] = {
    "nearly_greedy": Disease(
        "Sampling is nearly greedy",
        sampling_checks.nearly_greedy,
        frozenset({"dead_groups", "identical_completions", "kl_spike", "gradient_spikes", "held_out_falls"}),
    ),
    "dead_groups": Disease("Groups without signal", sampling_checks.dead_groups),
    "verifier_errors": Disease("The verifier fails", course_checks.verifier_errors),
    "verifier_time_outs": Disease("The verifier runs out of time", course_checks.verifier_time_outs),
    "truncation": Disease("Completions are cut off", sampling_checks.truncation),
    "kl_spike": Disease("KL jumped", policy_checks.kl_spike),
    "kl_stuck_at_zero": Disease("KL stuck at 0", policy_checks.kl_stuck_at_zero),
    "entropy_collapse": Disease("Entropy collapsed", policy_checks.entropy_collapse),
    "ratio_explosion": Disease("Ratios explode", policy_checks.ratio_explosion),
    "gradient_spikes": Disease("Gradient spikes", policy_checks.gradient_spikes),
    "updates_not_finite": Disease("Updates that are not finite", policy_checks.updates_not_finite),
    "length_collapse": Disease("Completions collapse", sampling_checks.length_collapse),
    "reasoning_dropped": Disease("Reasoning is dropped", sampling_checks.reasoning_dropped),
    "length_growth": Disease("Completions grow", sampling_checks.length_growth),
    "hollow_reward": Disease("Reward up, held-out flat", course_checks.hollow_reward, frozenset({"held_out_falls"})),
    "held_out_falls": Disease("Held-out score falls", course_checks.held_out_falls),
    "identical_completions": Disease("Identical completions", sampling_checks.identical_completions),
    "other_writing_system": Disease("Another writing system", sampling_checks.other_writing_system),
    "runs_on_after_answer": Disease("Goes on after the answer", sampling_checks.runs_on_after_answer),
    "learning_rate_too_small": Disease("Learning rate too small for bf16", policy_checks.learning_rate_too_small),
    "engine_gap": Disease("Engine and trainer disagree", policy_checks.engine_gap),
    "slow_phase": Disease("A slow phase", course_checks.slow_phase),
}


def examine(charts: Iterable[StageHistory]) -> tuple[Finding, ...]:
    """What is wrong, stage by stage; the sick before the merely odd."""
    found: list[Finding] = []
    for chart in charts:
        here = [finding for disease in DISEASES.values() if (finding := disease.find(chart))]
        explained = frozenset().union(*(DISEASES[finding.disease].explains for finding in here))
        found += [finding for finding in here if finding.disease not in explained]
    return tuple(sorted(found, key=lambda finding: finding.severity != "sick"))
