"""Checks of the run as a whole: no learning, a verifier that fails, a reward that does not carry over, lost time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from groupwise.audit.held_out_gain import evaluates_greedily, held_out_ends, held_out_gains, pass_at_1_gain
from groupwise.base.stats import mean
from groupwise.base.text_layout import percent, points
from groupwise.doctor.chart import SOLVED, Change, Finding, Severity, StageHistory
from groupwise.doctor.sampling_checks import GREEDY_TEMPERATURE, TRUNCATED_SHARE
from groupwise.doctor.series import Point, average, has_risen, persistent, values_of
from groupwise.runs.records import DEAD_STEPS
from groupwise.types import StepRecord

PART = "reward/part/"
"""Prefix of the metrics of the score's parts."""
FAILED_SHARE = 0.01
"""A single failed rollout now and then is normal."""
SICK_FAILED_SHARE = 0.05
"""From here on the failures decide which problems are learned from."""
MOSTLY_FAILED_SHARE = 0.5
"""From here on a few steps are enough to report it."""
NEED, WITHIN = 5, 10

MIN_HOLLOW_STEPS = 20
"""With fewer, a quarter of the steps is a handful, and the held-out score lags behind."""
HOLLOW_SHARE = 0.25
"""Held-out pass@1 counts as flat when it gained less than this share of what the reward gained."""

MIN_PHASE_SECONDS = 60.0
"""A phase that took less than a minute in all is not worth reporting."""
MIN_PHASE_STEPS = 10
PHASES: Mapping[str, tuple[float, str, str, int | str]] = {
    # Phases that can overlap with others or happen less often; sampling and updating are the work itself.
    "time/score_s": (0.25, "waiting for scores", "verifier.workers", "auto"),
    "time/eval_s": (0.5, "held-out evaluations", "evaluation.every_steps", 20),
    "time/checkpoint_s": (0.2, "writing checkpoints", "checkpoints.every_steps", 10),
}
"""Metric: the share of the time that is too much, the phase in words, the key to raise, and its default."""
MAX_WORKERS = 256
USUAL_CORES = 8
"""Assumed when the run did not record its machine."""


def no_learning(chart: StageHistory) -> Finding | None:
    """A stage in which no step so far could move the policy. Three steps are enough to say so."""
    steps = len(chart.steps)
    if steps < DEAD_STEPS or chart.num_dead < steps or not chart.begins_at_start:
        return None

    def usual(name: str) -> float:
        return mean(values_of(chart.series(name)) or [0.0])

    if usual("score/error_share") + usual("score/timed_out_share") >= MOSTLY_FAILED_SHARE:
        return None  # the verifier is the cause, and has its own checks
    wrong, right = (sum(values_of(chart.series(f"groups/dead_all_{verdict}"))) for verdict in ("wrong", "correct"))
    is_solved = usual("score/pass_at_1") >= SOLVED
    return chart.finding(
        [(record.step, 0.0) for record in chart.steps],
        seen=f"no gradient in {steps} of {steps} steps: all rewards of each group were equal (reward "
        f"{usual('reward/mean'):.3f}; groups all wrong {wrong:.0f}, all correct {right:.0f}; no answer found in "
        f"{percent(usual('score/unparsed_share'), 0)} of the completions)",
        means="the policy solves every problem already: there is nothing left to learn here"
        if is_solved
        else "the policy has not changed: a group teaches by how its rewards differ, and no group has two rewards",
        change=_first_signal(chart, is_solved, usual("rollouts/truncated_share")),
        figures={"num_dead": float(steps), "reward/mean": usual("reward/mean")},
        severity="watch" if is_solved else "sick",
    )


def _first_signal(chart: StageHistory, is_solved: bool, truncated_share: float) -> Change:
    limit, temperature = chart.setting("sampling.max_new_tokens", 256), chart.setting("sampling.temperature", 1.0)
    if is_solved:
        return Change("take harder problems, or end the run here")
    if temperature <= GREEDY_TEMPERATURE:
        return chart.change("sampling.temperature", 1.0, "at this temperature the rollouts of a group are all alike")
    if truncated_share >= TRUNCATED_SHARE:
        advice = (
            f"{percent(truncated_share, 0)} of the completions are cut off; if they never end, put an SFT stage first"
        )
        return chart.change("sampling.max_new_tokens", 2 * limit, advice)
    return Change(
        "put a short SFT stage first, take easier problems, or give partial credit in the reward; if the completions "
        f"look right, test the verifier: `groupwise validate {chart.run_setting('task.name', 'TASK')}`"
    )


def _failures(chart: StageHistory, name: str) -> tuple[Severity, list[Point], float]:
    """Return how bad the failures of a kind are, the steps with many of them (or none), and their share there."""
    series = chart.series(name)
    points = persistent(series, lambda share: share > FAILED_SHARE, NEED, WITHIN)
    points = points or persistent(series, lambda share: share >= MOSTLY_FAILED_SHARE, DEAD_STEPS, DEAD_STEPS)
    share = average(points)
    return "sick" if share >= SICK_FAILED_SHARE else "watch", points, share


def verifier_errors(chart: StageHistory) -> Finding | None:
    severity, points, share = _failures(chart, "score/error_share")
    if not points:
        return None
    said = next((sign.failure for sign in reversed(chart.signs) if sign.failure), "")
    task = chart.run_setting("task.name", "TASK")
    is_memory = "memory" in said.lower()
    return chart.finding(
        points,
        seen=f"the verifier fails on {percent(share)} of the rollouts in {len(points)} steps"
        + (f"; it says: {said[:200]}" if said else ""),
        means="rollouts that it fails on are left out of the loss: the policy never learns that they are wrong",
        change=Change(
            f"fix the verifier: `groupwise validate {task}` tests it; memory is verifier.memory_mb",
            "verifier.memory_mb" if is_memory else "",
            2 * chart.run_setting("verifier.memory_mb", 4096) if is_memory else None,
        ),
        figures={"score/error_share": share},
        severity=severity,
    )


def verifier_time_outs(chart: StageHistory) -> Finding | None:
    severity, points, share = _failures(chart, "score/timed_out_share")
    if not points:
        return None
    seconds, on_the_clock = chart.run_setting("verifier.seconds", 5.0), chart.run_setting("verifier.wall_seconds", 60.0)
    also = " (and raise verifier.wall_seconds as well)" if 2 * seconds > on_the_clock else ""
    advice = f"more time per completion{also}; or make the verifier give up by itself and call the answer wrong"
    return chart.finding(
        points,
        seen=f"scoring timed out on {percent(share)} of the rollouts in {len(points)} steps (limit {seconds:g} s)",
        means="slow rollouts are left out of the loss: the policy never learns that slow programs are wrong",
        change=Change(advice, "verifier.seconds", 2 * seconds),
        figures={"score/timed_out_share": share, "verifier.seconds": seconds},
        severity=severity,
    )


def hollow_reward(chart: StageHistory) -> Finding | None:
    """The reward rose by more than held-out pass@1 did, beyond both intervals; the audit reports weaker cases too."""
    # Rewards after the newest evaluation have nothing to be compared with yet.
    newest = max((record.step for record in chart.evals), default=0)
    steps = [record for record in chart.steps if record.step <= newest]
    is_greedy = evaluates_greedily(chart.recipe)
    gains = held_out_gains(steps, chart.evals, is_greedy=is_greedy) if len(steps) >= MIN_HOLLOW_STEPS else ()
    if not gains or not gains[0].is_suspicious or gains[0].reward_gain_low <= gains[0].held_out_gain_high:
        return None
    gain = gains[0]
    if has_risen(chart.series("score/pass_at_1")):
        advice = "it solves more of its training problems only; `groupwise audit RUN` looks for holes in the verifier"
        change = chart.closer(advice)
    else:
        change = _pay_less(chart, steps)
    return chart.finding(
        [(record.step, 0.0) for record in steps],
        seen=f"reward {gain.reward_first:.3f} → {gain.reward_last:.3f}, held-out pass@1 "
        f"{percent(gain.held_out_first)} → {percent(gain.held_out_last)} (95 % interval of the gain "
        f"{points(gain.held_out_gain_low)} to {points(gain.held_out_gain_high)} points)",
        means="the policy learns something other than the task: a hole in the verifier, the format, or the training "
        "problems by heart",
        change=change,
        figures={"reward_gain": gain.reward_gain, "held_out_gain": gain.held_out_gain},
        severity="sick" if gain.held_out_gain < HOLLOW_SHARE * gain.reward_gain else "watch",
    )


def _pay_less(chart: StageHistory, steps: Sequence[StepRecord]) -> Change:
    """Return the change that pays less for the part of the score whose contribution grew most."""
    half = len(steps) // 2
    names = {key.removeprefix(PART) for one in steps for key in one.metrics if key.startswith(PART)} - {"correct"}
    weights = {name: chart.setting(f"reward.part_weights.{name}", 1.0) for name in sorted(names)}

    def gained(name: str) -> float:
        before, after = (
            mean([one.metrics.get(PART + name, 0.0) for one in some]) for some in (steps[:half], steps[half:])
        )
        return float(weights[name] * (after - before))

    most = max(weights, key=gained, default=None)
    if most is None or most in chart.setting("reward.format_parts", ()):
        advice = "the reward pays for parts of the score, not for right answers: fade them; see `groupwise audit RUN`"
        return chart.change("reward.format_anneal_steps", max(1, chart.planned_steps // 2), advice)
    advice = (
        f"the reward is paid for `{most}`, not for right answers: halve its weight, or pay for `correct` only; see "
        "`groupwise audit RUN`"
    )
    return chart.change(f"reward.part_weights.{most}", weights[most] / 2, advice)


def held_out_falls(chart: StageHistory) -> Finding | None:
    """Held-out pass@1 fell in this stage, SFT included; if the reward rose, `hollow_reward` reports it instead."""
    ends = held_out_ends(chart.steps, chart.evals)
    if ends is None:
        return None
    before, after = ends
    low, high = pass_at_1_gain(before, after)
    if high >= 0:
        return None
    newest = chart.evals[-1]
    is_made_up = newest.step > after.step and newest.pass_at_1 >= before.pass_at_1
    advice = "smaller updates, from the best checkpoint; `groupwise compare` shows which answers were lost"
    regained = f"; since then {percent(newest.pass_at_1)} (step {newest.step})" if is_made_up else ""
    return chart.finding(
        [(record.step, 0.0) for record in chart.steps if record.step <= after.step],
        seen=f"held-out pass@1 {percent(before.pass_at_1)} (step {before.step}) → {percent(after.pass_at_1)} "
        f"(step {after.step}; 95 % interval of the change {points(low)} to {points(high)} points){regained}",
        means="the model is worse at the task than when the stage began"
        + (", and a later stage has made up for it" if is_made_up else ""),
        change=chart.slower(advice),
        figures={"held_out_first": before.pass_at_1, "held_out_last": after.pass_at_1},
        severity="watch" if is_made_up else "sick",
    )


def slow_phase(chart: StageHistory) -> Finding | None:
    if len(chart.steps) < MIN_PHASE_STEPS:
        return None
    names = ("time/step_s", "time/eval_s", "time/checkpoint_s")
    whole = sum(sum(values_of(chart.series(name))) for name in names)
    for name, (limit, title, key, default) in PHASES.items():
        spent = sum(values_of(chart.series(name)))
        if spent >= max(MIN_PHASE_SECONDS, limit * whole):
            return chart.finding(
                chart.series(name),
                seen=f"{title} took {spent:.0f} s, {percent(spent / whole, 0)} of the time",
                means="the model waits instead of sampling and learning",
                change=_less_of(chart, key, default),
                figures={name: spent, "share": spent / whole},
                severity="watch",
            )
    return None


def _less_of(chart: StageHistory, key: str, default: int | str) -> Change:
    set_to = chart.run_setting(key, default)
    if set_to == "auto":
        cores = int(chart.info.get("machine", {}).get("num_cores", USUAL_CORES))
        advice = "more processes; `auto` takes half of the cores"
        return Change(advice, key, min(max(cores, 4), MAX_WORKERS))
    given = int(set_to)
    if key == "evaluation.every_steps" and given == 0:
        # Evaluations are at the ends of stages only: all that is left is fewer problems.
        problems = int(chart.run_setting("evaluation.num_problems", 200)) or 400
        return Change("shorter evaluations; wider intervals", "evaluation.num_problems", max(1, problems // 2))
    return Change("less waiting", key, min(2 * max(given, 1), MAX_WORKERS) if key == "verifier.workers" else 2 * given)
