"""Every check of the doctor, by name. To add one, write a function from a stage's history to a finding and list it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from typing import NamedTuple

from groupwise.doctor import course_checks, policy_checks, sampling_checks
from groupwise.doctor.stage_history import Finding, StageHistory


class DoctorCheck(NamedTuple):
    title: str
    find: Callable[[StageHistory], Finding | None]
    explains: Set[str] = frozenset()
    """Checks whose findings follow from this one's; their advice would mislead, so they are left out."""


CHECKS: Mapping[str, DoctorCheck] = {
    "no_learning": DoctorCheck(
        "No learning: the gradient is 0",
        course_checks.no_learning,
        {"dead_groups", "nearly_greedy", "truncation", "identical_completions", "kl_stuck_at_zero"},
    ),
    "nearly_greedy": DoctorCheck(
        "Sampling is nearly greedy",
        sampling_checks.nearly_greedy,
        {"dead_groups", "identical_completions", "kl_spike", "gradient_spikes", "held_out_falls"},
    ),
    "dead_groups": DoctorCheck("Groups without signal", sampling_checks.dead_groups),
    "verifier_failures_grow": DoctorCheck(
        "The verifier fails more and more",
        course_checks.verifier_failures_grow,
        {"verifier_errors", "verifier_time_outs"},
    ),
    "verifier_errors": DoctorCheck("The verifier fails", course_checks.verifier_errors),
    "verifier_time_outs": DoctorCheck("The verifier times out", course_checks.verifier_time_outs),
    "truncation": DoctorCheck("Completions are cut off", sampling_checks.truncation),
    "kl_spike": DoctorCheck("KL jumped", policy_checks.kl_spike),
    "kl_stuck_at_zero": DoctorCheck("KL stuck at 0", policy_checks.kl_stuck_at_zero),
    "entropy_collapse": DoctorCheck("Entropy collapsed", policy_checks.entropy_collapse),
    "ratio_explosion": DoctorCheck("Probability ratios explode", policy_checks.ratio_explosion),
    "gradient_spikes": DoctorCheck("Gradient spikes", policy_checks.gradient_spikes),
    "updates_not_finite": DoctorCheck("Updates are not finite", policy_checks.updates_not_finite),
    "length_collapse": DoctorCheck("Completions shrink", sampling_checks.length_collapse),
    "reasoning_dropped": DoctorCheck("Reasoning is dropped", sampling_checks.reasoning_dropped),
    "length_growth": DoctorCheck("Completions grow", sampling_checks.length_growth),
    "hollow_reward": DoctorCheck("Reward up, held-out flat", course_checks.hollow_reward, {"held_out_falls"}),
    "held_out_falls": DoctorCheck("Held-out score falls", course_checks.held_out_falls),
    "identical_completions": DoctorCheck("Identical completions", sampling_checks.identical_completions),
    "other_writing_system": DoctorCheck("Another writing system", sampling_checks.other_writing_system),
    "runs_on_after_answer": DoctorCheck("Text after the answer", sampling_checks.runs_on_after_answer),
    "learning_rate_too_small": DoctorCheck("Learning rate too small for bf16", policy_checks.learning_rate_too_small),
    "engine_gap": DoctorCheck("Engine and trainer disagree", policy_checks.engine_gap),
    "slow_phase": DoctorCheck("A slow phase", course_checks.slow_phase),
}


def examine(stages: Iterable[StageHistory]) -> tuple[Finding, ...]:
    """Run every check on every stage: problems first, a run that does not learn before all others."""
    found: list[Finding] = []
    for stage in stages:
        here = [replace(finding, check=name) for name, check in CHECKS.items() if (finding := check.find(stage))]
        explained = set[str]().union(*(CHECKS[finding.check].explains for finding in here))
        found += [finding for finding in here if finding.check not in explained]
    return tuple(sorted(found, key=lambda finding: (finding.severity != "problem", finding.check != "no_learning")))
