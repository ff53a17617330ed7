"""Diseases of the run as a whole: a verifier that fails, reward that does not carry over, time that goes elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from groupwise.audit.held_out_gain import held_out_ends, held_out_gains, pass_at_1_gain
from groupwise.base.stats import mean
from groupwise.doctor.chart import StageHistory
from groupwise.doctor.finding import Change, Finding
from groupwise.doctor.series import has_risen, persistent, values_of
from groupwise.types import StepRecord

PART = "reward/part/"
"""Before the name of a part of the score, in metrics."""
FAILED_SHARE = 0.01
"""A single rollout now and then is no disease."""
SICK_FAILED_SHARE = 0.05
"""From here on the failures choose which problems are learned from."""
NEED, WITHIN = 5, 10

MIN_HOLLOW_STEPS = 20
"""Under this a quarter of the steps is a handful, and held-out problems lag behind."""
HOLLOW_SHARE = 0.25
"""Held-out pass@1 that gained less than this share of what the reward did counts as flat."""

MIN_PHASE_SECONDS = 60.0
"""A phase that has cost less than a minute is nobody's problem."""
MIN_PHASE_STEPS = 10
PHASES: Mapping[str, tuple[float, str, str, int | str]] = {
    # What could go on beside the rest, or happen less often; sampling and updating are the work itself.
    "time/score_s": (0.25, "waiting for scores", "verifier.workers", "auto"),
    "time/eval_s": (0.5, "held-out evaluations", "evaluation.every_steps", 20),
    "time/checkpoint_s": (0.2, "writing checkpoints", "checkpoints.every_steps", 10),
}
"""Phase: the share of the time that is too much, its name, the key that helps when raised, and its default."""
MAX_WORKERS = 256
USUAL_CORES = 8
"""Of a machine that did not say."""


def verifier_errors(chart: StageHistory) -> Finding | None:
    points = persistent(chart.series("score/error_share"), lambda share: share > FAILED_SHARE, NEED, WITHIN)
    if not points:
        return None
    share = mean(values_of(points))
    said = next((sign.failure for sign in reversed(chart.signs) if sign.failure), "")
    task = chart.run_setting("task.name", "TASK")
    return chart.finding(
        "verifier_errors",
        "sick" if share >= SICK_FAILED_SHARE else "watch",
        points,
        seen=f"the verifier fails on {share:.1%} of the rollouts in {len(points)} steps"
        + (f"; it says: {said[:200]}" if said else ""),
        means="what it fails on is left out of the loss: the policy never learns that those completions are wrong",
        change=Change(
            f"mend the verifier: `groupwise validate {task}` tests it; memory is verifier.memory_mb",
            "verifier.memory_mb" if "memory" in said.lower() else "",
            2 * chart.run_setting("verifier.memory_mb", 4096) if "memory" in said.lower() else None,
        ),
        figures={"score/error_share": share},
    )


def verifier_time_outs(chart: StageHistory) -> Finding | None:
    points = persistent(chart.series("score/timed_out_share"), lambda share: share > FAILED_SHARE, NEED, WITHIN)
    if not points:
        return None
    share = mean(values_of(points))
    seconds, on_the_clock = chart.run_setting("verifier.seconds", 5.0), chart.run_setting("verifier.wall_seconds", 60.0)
    also = " (and as much in verifier.wall_seconds)" if 2 * seconds > on_the_clock else ""
    return chart.finding(
        "verifier_time_outs",
        "sick" if share >= SICK_FAILED_SHARE else "watch",
        points,
        seen=f"scoring ran out of time on {share:.1%} of the rollouts in {len(points)} steps (limit {seconds:g} s)",
        means="what takes too long is left out of the loss: slow wrong programs are never told that they are wrong",
        change=Change(
            f"more time for each{also}; or make the verifier give up by itself, with a wrong answer",
            "verifier.seconds",
            2 * seconds,
        ),
        figures={"score/timed_out_share": share, "verifier.seconds": seconds},
    )


def hollow_reward(chart: StageHistory) -> Finding | None:
    """Surer than the audit, which shows every doubt: the reward must surely have risen by more than held-out did."""
    # Reward of after the newest evaluation has nothing to be compared with yet.
    newest = max((record.step for record in chart.evals), default=0)
    steps = [record for record in chart.steps if record.step <= newest]
    gains = held_out_gains(steps, chart.evals) if len(steps) >= MIN_HOLLOW_STEPS else ()
    if not gains or not gains[0].is_suspicious or gains[0].reward_gain_low <= gains[0].held_out_gain_high:
        return None
    gain = gains[0]
    if has_risen(chart.series("score/pass_at_1")):
        advice = "it is right more often on what it trains on alone; `groupwise audit RUN` looks for holes"
        coefficient = chart.setting("kl.coefficient", 0.0)
        change = chart.change("kl.coefficient", 2 * coefficient if coefficient else 0.04, advice)
    else:
        change = _pay_less(chart, steps)
    return chart.finding(
        "hollow_reward",
        "sick" if gain.held_out_gain < HOLLOW_SHARE * gain.reward_gain else "watch",
        [(record.step, 0.0) for record in steps],
        seen=f"reward {gain.reward_first:.3f} → {gain.reward_last:.3f}, held-out pass@1 {gain.held_out_first:.1%} → "
        f"{gain.held_out_last:.1%} (95 % interval of the gain {gain.held_out_gain_low:+.1%} to "
        f"{gain.held_out_gain_high:+.1%})",
        means="the policy learns something that is not the task: a hole in the verifier, the format, or the problems "
        "themselves",
        change=change,
        figures={"reward_gain": gain.reward_gain, "held_out_gain": gain.held_out_gain},
    )


def _pay_less(chart: StageHistory, steps: Sequence[StepRecord]) -> Change:
    """For the part of the score that came to earn most, while the policy was right no more often."""
    half = len(steps) // 2
    weights = {
        name: chart.setting(f"reward.part_weights.{name}", 1.0)
        for name in sorted({key.removeprefix(PART) for one in steps for key in one.metrics if key.startswith(PART)})
        if name != "correct"
    }

    def gained(name: str) -> float:
        before, after = (
            mean([one.metrics.get(PART + name, 0.0) for one in some]) for some in (steps[:half], steps[half:])
        )
        return float(weights[name] * (after - before))

    most = max(weights, key=gained, default=None)
    if most is None or most in chart.setting("reward.format_parts", ()):
        advice = "it is paid for parts of the score, not for being right: let them fade; see `groupwise audit RUN`"
        return chart.change("reward.format_anneal_steps", max(1, chart.planned_steps // 2), advice)
    advice = (
        f"it is paid for `{most}`, not for being right: pay half for that, or nothing for any part but `correct`; "
        "see `groupwise audit RUN`"
    )
    return chart.change(f"reward.part_weights.{most}", weights[most] / 2, advice)


def held_out_falls(chart: StageHistory) -> Finding | None:
    """Of any stage, SFT too; where the reward rose meanwhile it is a hollow reward."""
    ends = held_out_ends(chart.steps, chart.evals)
    if ends is None:
        return None
    before, after = ends
    low, high = pass_at_1_gain(before, after)
    if high >= 0:
        return None
    newest = chart.evals[-1]
    is_made_up = newest.step > after.step and newest.pass_at_1 >= before.pass_at_1
    regained = f"; since then {newest.pass_at_1:.1%} (step {newest.step})" if is_made_up else ""
    return chart.finding(
        "held_out_falls",
        "watch" if is_made_up else "sick",
        [(record.step, 0.0) for record in chart.steps if record.step <= after.step],
        seen=f"held-out pass@1 {before.pass_at_1:.1%} (step {before.step}) → {after.pass_at_1:.1%} (step {after.step}; "
        f"95 % interval of the change {low:+.1%} to {high:+.1%}){regained}",
        means="the model is worse at the task than the stage found it"
        + (", and a later stage has made up for that" if is_made_up else ""),
        change=chart.slower(
            "smaller updates; go back to the best checkpoint, and look at what the answers lost: `groupwise compare`"
        ),
        figures={"held_out_first": before.pass_at_1, "held_out_last": after.pass_at_1},
    )


def slow_phase(chart: StageHistory) -> Finding | None:
    if len(chart.steps) < MIN_PHASE_STEPS:
        return None
    names = ("time/step_s", "time/eval_s", "time/checkpoint_s")
    whole = sum(sum(values_of(chart.series(name))) for name in names)
    for name, (limit, title, key, default) in PHASES.items():
        spent = sum(values_of(chart.series(name)))
        if spent < MIN_PHASE_SECONDS or spent < limit * whole:
            continue
        return chart.finding(
            "slow_phase",
            "watch",
            chart.series(name),
            seen=f"{title} took {spent:.0f} s, {spent / whole:.0%} of the time",
            means="the model waits instead of sampling and learning",
            change=_less_of(chart, key, default),
            figures={name: spent, "share": spent / whole},
        )
    return None


def _less_of(chart: StageHistory, key: str, default: int | str) -> Change:
    set_to = chart.run_setting(key, default)
    if set_to == "auto":
        cores = int(chart.info.get("machine", {}).get("num_cores", USUAL_CORES))
        advice = "more processes than the half of the cores that `auto` takes"
        return Change(advice, key, min(max(cores, 4), MAX_WORKERS))
    given = int(set_to)
    if key == "evaluation.every_steps" and given == 0:
        # They are at the ends of stages alone: fewer problems are what is left.
        problems = int(chart.run_setting("evaluation.num_problems", 200)) or 400
        return Change("shorter evaluations, with wider intervals", "evaluation.num_problems", max(1, problems // 2))
    return Change("less waiting", key, min(2 * max(given, 1), MAX_WORKERS) if key == "verifier.workers" else 2 * given)
