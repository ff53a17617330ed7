"""Checks of the run as a whole: no learning, a verifier that fails, a reward that does not carry over, lost time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from groupwise.audit.held_out_gain import evaluates_greedily, held_out_ends, held_out_gains, pass_at_1_gain
from groupwise.base.stats import mean
from groupwise.base.text_layout import percent, points
from groupwise.doctor.sampling_checks import GREEDY_TEMPERATURE, TRUNCATED_SHARE
from groupwise.doctor.series import Point, average, has_risen, persistent, values_of
from groupwise.doctor.stage_history import SOLVED, Change, Finding, Severity, StageHistory
from groupwise.runs.records import DEAD_STEPS
from groupwise.types import StepRecord

PART = "reward/part/"
"""Prefix of the metrics of the score's parts."""
FAILED_SHARE = 0.01
"""A single failed rollout now and then is normal."""
PROBLEM_FAILED_SHARE = 0.05
"""From here on the failures decide which problems are learned from."""
MOSTLY_FAILED_SHARE = 0.5
"""From here on a few steps are enough to report it."""
NEED, WITHIN = 5, 10
MIN_STEPS_BEFORE = 10
"""Steps before the failures that show how many there were at first."""
GROWTH = 3.0
"""From this ratio on the policy has changed something, not the luck of the draw."""

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


def no_learning(stage: StageHistory) -> Finding | None:
    """A stage in which no step so far could move the policy. Three steps are enough to say so."""
    steps = len(stage.steps)
    if steps < DEAD_STEPS or stage.num_dead < steps or not stage.begins_at_start:
        return None

    def usual(name: str) -> float:
        return mean(values_of(stage.series(name)) or [0.0])

    if usual("score/error_share") + usual("score/timed_out_share") >= MOSTLY_FAILED_SHARE:
        return None  # the verifier is the cause, and has its own checks
    wrong, right = (sum(values_of(stage.series(f"groups/dead_all_{verdict}"))) for verdict in ("wrong", "correct"))
    is_solved = usual("score/pass_at_1") >= SOLVED
    return stage.finding(
        [(record.step, 0.0) for record in stage.steps],
        seen=f"no gradient in {steps} of {steps} steps: all rewards of each group were equal (reward "
        f"{usual('reward/mean'):.3f}; groups all wrong {wrong:.0f}, all correct {right:.0f}; no answer found in "
        f"{percent(usual('score/unparsed_share'), 0)} of the completions)",
        means="the policy solves every problem already: there is nothing left to learn here"
        if is_solved
        else "the policy has not changed: a group teaches by how its rewards differ, and no group has two rewards",
        change=_first_signal(stage, is_solved, usual("rollouts/truncated_share")),
        figures={"num_dead": float(steps), "reward/mean": usual("reward/mean")},
        severity="warning" if is_solved else "problem",
    )


def _first_signal(stage: StageHistory, is_solved: bool, truncated_share: float) -> Change:
    limit, temperature = stage.setting("sampling.max_new_tokens", 256), stage.setting("sampling.temperature", 1.0)
    if is_solved:
        return Change("take harder problems, or end the run here")
    if temperature <= GREEDY_TEMPERATURE:
        return stage.change("sampling.temperature", 1.0, "at this temperature the rollouts of a group are all alike")
    if truncated_share >= TRUNCATED_SHARE:
        advice = (
            f"{percent(truncated_share, 0)} of the completions are cut off; if they never end, put an SFT stage first"
        )
        return stage.change("sampling.max_new_tokens", 2 * limit, advice)
    return Change(
        "put a short SFT stage first, take easier problems, or give partial credit in the reward; if the completions "
        f"look right, test the verifier: `groupwise validate {stage.run_setting('task.name', 'TASK')}`"
    )


def _failures(stage: StageHistory, *names: str) -> tuple[Severity, list[Point], float]:
    """Return how bad the failures of some kinds are, the steps with many of them (or none), and their share there."""
    together = Counter[int]()
    for name in names:
        together.update(dict(stage.series(name)))
    series = sorted(together.items())
    points = persistent(series, lambda share: share > FAILED_SHARE, NEED, WITHIN)
    points = points or persistent(series, lambda share: share >= MOSTLY_FAILED_SHARE, DEAD_STEPS, DEAD_STEPS)
    share = average(points)
    return "problem" if share >= PROBLEM_FAILED_SHARE else "warning", points, share


def verifier_failures_grow(stage: StageHistory) -> Finding | None:
    """Failures that came with training: the policy may have found out what its verifier cannot judge."""
    names = ("score/error_share", "score/timed_out_share")
    severity, points, share = _failures(stage, *names)
    before = [record.metrics for record in stage.steps if points and record.step < points[0][0]]
    first = mean([sum(metrics.get(name, 0.0) for name in names) for metrics in before] or [0.0])
    if len(before) < MIN_STEPS_BEFORE or share < GROWTH * first:
        return None
    return stage.finding(
        points,
        seen=f"scoring failed on {percent(first)} of the rollouts in the first {len(before)} steps, and on "
        f"{percent(share)} in {len(points)} later ones",
        means="the policy may be learning to break its verifier: what cannot be scored is left out of the loss",
        change=Change("make the verifier call such completions wrong; `groupwise audit RUN` shows them"),
        figures={"failed_share_first": first, "failed_share": share},
        severity=severity,
    )


def verifier_errors(stage: StageHistory) -> Finding | None:
    severity, points, share = _failures(stage, "score/error_share")
    if not points:
        return None
    said = next((sign.failure for sign in reversed(stage.signs) if sign.failure), "")
    task = stage.run_setting("task.name", "TASK")
    is_memory = "memory" in said.lower()
    return stage.finding(
        points,
        seen=f"the verifier fails on {percent(share)} of the rollouts in {len(points)} steps"
        + (f"; it says: {said[:200]}" if said else ""),
        means="rollouts that it fails on are left out of the loss: the policy never learns that they are wrong",
        change=Change(
            f"fix the verifier: `groupwise validate {task}` tests it; memory is verifier.memory_mb",
            "verifier.memory_mb" if is_memory else "",
            2 * stage.run_setting("verifier.memory_mb", 4096) if is_memory else None,
        ),
        figures={"score/error_share": share},
        severity=severity,
    )


def verifier_time_outs(stage: StageHistory) -> Finding | None:
    severity, points, share = _failures(stage, "score/timed_out_share")
    if not points:
        return None
    seconds, on_the_clock = stage.run_setting("verifier.seconds", 5.0), stage.run_setting("verifier.wall_seconds", 60.0)
    also = " (and raise verifier.wall_seconds as well)" if 2 * seconds > on_the_clock else ""
    advice = f"more time per completion{also}; or make the verifier give up by itself and call the answer wrong"
    return stage.finding(
        points,
        seen=f"scoring timed out on {percent(share)} of the rollouts in {len(points)} steps (limit {seconds:g} s)",
        means="slow rollouts are left out of the loss: the policy never learns that slow programs are wrong",
        change=Change(advice, "verifier.seconds", 2 * seconds),
        figures={"score/timed_out_share": share, "verifier.seconds": seconds},
        severity=severity,
    )


def hollow_reward(stage: StageHistory) -> Finding | None:
    """The reward rose by more than held-out pass@1 did, beyond both intervals; the audit reports weaker cases too."""
    # Rewards after the newest evaluation have nothing to be compared with yet.
    newest = max((record.step for record in stage.evals), default=0)
    steps = [record for record in stage.steps if record.step <= newest]
    is_greedy = evaluates_greedily(stage.recipe)
    gains = held_out_gains(steps, stage.evals, is_greedy=is_greedy) if len(steps) >= MIN_HOLLOW_STEPS else ()
    if not gains or not gains[0].is_suspicious or gains[0].reward_gain_low <= gains[0].held_out_gain_high:
        return None
    gain = gains[0]
    if has_risen(stage.series("score/pass_at_1")):
        advice = "it solves more of its training problems only; `groupwise audit RUN` looks for holes in the verifier"
        change = stage.closer(advice)
    else:
        change = _pay_less(stage, steps)
    return stage.finding(
        [(record.step, 0.0) for record in steps],
        seen=f"reward {gain.reward_first:.3f} → {gain.reward_last:.3f}, held-out pass@1 "
        f"{percent(gain.held_out_first)} → {percent(gain.held_out_last)} (95 % interval of the gain "
        f"{points(gain.held_out_gain_low)} to {points(gain.held_out_gain_high)} points)",
        means="the policy learns something other than the task: a hole in the verifier, the format, or the training "
        "problems by heart",
        change=change,
        figures={"reward_gain": gain.reward_gain, "held_out_gain": gain.held_out_gain},
        severity="problem" if gain.held_out_gain < HOLLOW_SHARE * gain.reward_gain else "warning",
    )


def _pay_less(stage: StageHistory, steps: Sequence[StepRecord]) -> Change:
    """Return the change that pays less for the part of the score whose contribution grew most."""
    half = len(steps) // 2
    names = {key.removeprefix(PART) for one in steps for key in one.metrics if key.startswith(PART)} - {"correct"}
    weights = {name: stage.setting(f"reward.part_weights.{name}", 1.0) for name in sorted(names)}

    def gained(name: str) -> float:
        before, after = (
            mean([one.metrics.get(PART + name, 0.0) for one in some]) for some in (steps[:half], steps[half:])
        )
        return float(weights[name] * (after - before))

    most = max(weights, key=gained, default=None)
    if most is None or most in stage.setting("reward.format_parts", ()):
        advice = "the reward pays for parts of the score, not for right answers: fade them; see `groupwise audit RUN`"
        return stage.change("reward.format_anneal_steps", max(1, stage.planned_steps // 2), advice)
    advice = (
        f"the reward is paid for `{most}`, not for right answers: halve its weight, or pay for `correct` only; see "
        "`groupwise audit RUN`"
    )
    return stage.change(f"reward.part_weights.{most}", weights[most] / 2, advice)


def held_out_falls(stage: StageHistory) -> Finding | None:
    """Held-out pass@1 fell in this stage, SFT included; if the reward rose, `hollow_reward` reports it instead."""
    ends = held_out_ends(stage.steps, stage.evals)
    if ends is None:
        return None
    before, after = ends
    low, high = pass_at_1_gain(before, after)
    if high >= 0:
        return None
    newest = stage.evals[-1]
    is_made_up = newest.step > after.step and newest.pass_at_1 >= before.pass_at_1
    advice = "smaller updates, from the best checkpoint; `groupwise compare` shows which answers were lost"
    regained = f"; since then {percent(newest.pass_at_1)} (step {newest.step})" if is_made_up else ""
    return stage.finding(
        [(record.step, 0.0) for record in stage.steps if record.step <= after.step],
        seen=f"held-out pass@1 {percent(before.pass_at_1)} (step {before.step}) → {percent(after.pass_at_1)} "
        f"(step {after.step}; 95 % interval of the change {points(low)} to {points(high)} points){regained}",
        means="the model is worse at the task than when the stage began"
        + (", and a later stage has made up for it" if is_made_up else ""),
        change=stage.slower(advice),
        figures={"held_out_first": before.pass_at_1, "held_out_last": after.pass_at_1},
        severity="warning" if is_made_up else "problem",
    )


def slow_phase(stage: StageHistory) -> Finding | None:
    if len(stage.steps) < MIN_PHASE_STEPS:
        return None
    names = ("time/step_s", "time/eval_s", "time/checkpoint_s")
    whole = sum(sum(values_of(stage.series(name))) for name in names)
    for name, (limit, title, key, default) in PHASES.items():
        spent = sum(values_of(stage.series(name)))
        if spent >= max(MIN_PHASE_SECONDS, limit * whole):
            return stage.finding(
                stage.series(name),
                seen=f"{title} took {spent:.0f} s, {percent(spent / whole, 0)} of the time",
                means="the model waits instead of sampling and learning",
                change=_less_of(stage, key, default),
                figures={name: spent, "share": spent / whole},
                severity="warning",
            )
    return None


def _less_of(stage: StageHistory, key: str, default: int | str) -> Change:
    set_to = stage.run_setting(key, default)
    if set_to == "auto":
        cores = int(stage.info.get("machine", {}).get("num_cores", USUAL_CORES))
        advice = "more processes; `auto` takes half of the cores"
        return Change(advice, key, min(max(cores, 4), MAX_WORKERS))
    given = int(set_to)
    if key == "evaluation.every_steps" and given == 0:
        # Evaluations are at the ends of stages only: all that is left is fewer problems.
        problems = int(stage.run_setting("evaluation.num_problems", 200)) or 400
        return Change("shorter evaluations; wider intervals", "evaluation.num_problems", max(1, problems // 2))
    return Change("less waiting", key, min(2 * max(given, 1), MAX_WORKERS) if key == "verifier.workers" else 2 * given)
