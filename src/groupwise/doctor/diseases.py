"""Every disease that the doctor knows, by name. A new one: a function from a chart to a finding, and a line here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from groupwise.doctor import course, policy, sampling
from groupwise.doctor.chart import Chart
from groupwise.doctor.finding import Finding


class Disease(NamedTuple):
    title: str
    find: Callable[[Chart], Finding | None]
    explains: frozenset[str] = frozenset()
    """Diseases that follow from it, and whose own advice would lead astray."""


DISEASES: Mapping[str, Disease] = {
    "nearly_greedy": Disease(
        "Sampling is nearly greedy",
        sampling.nearly_greedy,
        frozenset({"dead_groups", "identical_completions", "kl_spike", "gradient_spikes", "held_out_falls"}),
    ),
    "dead_groups": Disease("Groups without signal", sampling.dead_groups),
    "verifier_errors": Disease("The verifier fails", course.verifier_errors),
    "verifier_time_outs": Disease("The verifier runs out of time", course.verifier_time_outs),
    "truncation": Disease("Completions are cut off", sampling.truncation),
    "kl_spike": Disease("KL jumped", policy.kl_spike),
    "kl_stuck_at_zero": Disease("KL stuck at 0", policy.kl_stuck_at_zero),
    "entropy_collapse": Disease("Entropy collapsed", policy.entropy_collapse),
    "ratio_explosion": Disease("Ratios explode", policy.ratio_explosion),
    "gradient_spikes": Disease("Gradient spikes", policy.gradient_spikes),
    "updates_not_finite": Disease("Updates that are not finite", policy.updates_not_finite),
    "length_collapse": Disease("Completions collapse", sampling.length_collapse),
    "reasoning_dropped": Disease("Reasoning is dropped", sampling.reasoning_dropped),
    "length_growth": Disease("Completions grow", sampling.length_growth),
    "hollow_reward": Disease("Reward up, held-out flat", course.hollow_reward, frozenset({"held_out_falls"})),
    "held_out_falls": Disease("Held-out score falls", course.held_out_falls),
    "identical_completions": Disease("Identical completions", sampling.identical_completions),
    "other_writing_system": Disease("Another writing system", sampling.other_writing_system),
    "runs_on_after_answer": Disease("Goes on after the answer", sampling.runs_on_after_answer),
    "learning_rate_too_small": Disease("Learning rate too small for bf16", policy.learning_rate_too_small),
    "engine_gap": Disease("Engine and trainer disagree", policy.engine_gap),
    "slow_phase": Disease("A slow phase", course.slow_phase),
}


def examine(charts: Iterable[Chart]) -> tuple[Finding, ...]:
    """What is wrong, stage by stage; the sick before the merely odd."""
    found: list[Finding] = []
    for chart in charts:
        here = [finding for disease in DISEASES.values() if (finding := disease.find(chart))]
        explained = frozenset().union(*(DISEASES[finding.disease].explains for finding in here))
        found += [finding for finding in here if finding.disease not in explained]
    return tuple(sorted(found, key=lambda finding: finding.severity != "sick"))
