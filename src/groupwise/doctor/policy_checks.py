"""Checks of the policy and its updates: KL, entropy, ratio, gradient, learning rate, engine against trainer."""

from __future__ import annotations

import math

from groupwise.base.text_layout import percent
from groupwise.doctor.chart import RECENT_STEPS, Change, Finding, StageHistory
from groupwise.doctor.series import average, jumps, middle, persistent, spikes, values_of

KL_JUMP_FACTOR = 5.0
KL_JUMP_NATS = 0.1
"""Per token. Below it, even a fivefold KL means a policy that stays near its reference."""
KL_BEFORE, KL_AFTER = 10, 5
KL_FAR_NATS = 1.0
"""The first steps have nothing before them to jump from; a nat per token is far there. A policy that learns well takes
dozens of steps to get there."""
KL_ZERO_NATS = 1e-10
"""Rounding only; a policy that has moved at all shows more. 0 is expected only in the first step of a stage."""

ENTROPY_NATS = 0.05
"""Per token: about one token in a hundred is still undecided."""
ENTROPY_SHARE = 0.2
"""And below this share of the entropy at the start: a policy that began this certain is not collapsing."""

CLIP_SHARE = 0.3
SEQUENCE_CLIP_SHARE = 0.6
"""With one narrow ratio per completion (GSPO), many are clipped by design."""
RATIO_MAX = 50.0
"""A token fifty times as likely after the update as before it: about e to the 4."""
GRADIENT_FACTOR = 10.0
GRADIENT_BEFORE = 20
MIN_SKIPPED = 3
"""A single update that is not finite is skipped and does no harm."""
NEED, WITHIN = 3, 10
"""NEED steps among WITHIN in a row; a single one is a rare batch."""

BF16_HALF_STEP = 2.0**-17
"""Half the distance between neighbouring bf16 numbers at 0.002, a tenth of a typical weight. Adam moves a weight by at
most about the learning rate per update: with less than this over the whole stage, hardly any bf16 weight changes."""
MIN_UPDATE_STEPS = 10

ENGINE_GAP_NATS = 0.05
"""Mean over tokens; bf16 kernels that compute the same thing differ by a few hundredths at most."""
GAP_NEED = 5


def kl_spike(chart: StageHistory) -> Finding | None:
    series = chart.series("kl/ref_k3")
    first = series[:KL_BEFORE] if chart.begins_at_start else []
    points = persistent(first, lambda kl: kl > KL_FAR_NATS, NEED, WITHIN)
    points = points or jumps(series, KL_JUMP_FACTOR, KL_JUMP_NATS, KL_BEFORE, KL_AFTER)
    if not points:
        return None
    before = [point for point in series if point[0] < points[0][0]][-KL_BEFORE:]
    seen = f"jumped from {middle(before):.2g} to" if before else "was from the first step on"
    return chart.finding(
        points,
        seen=f"KL from the reference {seen} {middle(points):.2g} nats a token, and stayed",
        means="a few updates moved the policy far from where it began; what it knew besides the task may be lost",
        change=chart.slower("smaller updates; go back to a checkpoint before the jump"),
        figures={"kl_before": middle(before) if before else 0.0, "kl_after": middle(points)},
    )


def kl_stuck_at_zero(chart: StageHistory) -> Finding | None:
    recent = chart.recent("kl/ref_k3")
    highest = max(map(abs, values_of(recent)), default=0.0)
    if len(recent) < RECENT_STEPS or highest > KL_ZERO_NATS:
        return None
    rate = chart.setting("optimizer.learning_rate", 1e-6)
    gradient = chart.recent("policy/grad_norm")
    change = chart.change("optimizer.learning_rate", rate * 10, "larger updates")
    if math.isinf(chart.setting("kl.coefficient", 0.0)):
        change = chart.change(
            "kl.coefficient", 0.02, "at inf the divergence is the whole loss, and rewards count for nothing"
        )
    return chart.finding(
        recent,
        seen=f"KL from the reference is at most {highest:.1g} after updates with a gradient of "
        f"{middle(gradient) if gradient else 0:.2g} and a learning rate of {rate:g}",
        means="the policy is still the reference: updates do not reach the weights, or are too small to change them",
        change=change,
        figures={"kl/ref_k3": middle(recent), "optimizer.learning_rate": rate},
    )


def entropy_collapse(chart: StageHistory) -> Finding | None:
    points, solved = chart.series("policy/entropy_nats"), chart.recent("score/pass_at_1")
    if len(points) < 2 * RECENT_STEPS or not solved or chart.is_solved:
        return None
    start, recent = middle(points[:RECENT_STEPS]), points[-RECENT_STEPS:]
    is_low = middle(recent) < ENTROPY_NATS and middle(recent) < ENTROPY_SHARE * start
    if not is_low or chart.is_rising:
        return None
    if _updates_per_step(chart) > 1 and chart.setting("loss.clip_high", 0.2) < 0.28:
        change = chart.change("loss.clip_high", 0.28, "let unlikely tokens grow (DAPO's clip-higher)")
    else:
        change = chart.slower("smaller updates, from a checkpoint before this; or raise sampling.temperature")
    return chart.finding(
        recent,
        seen=f"entropy went from {start:.2f} to {middle(recent):.3f} nats per token, "
        f"at pass@1 {percent(middle(solved), 0)}",
        means="the policy became certain before it was right: it no longer tries anything else",
        change=change,
        figures={"entropy_start": start, "entropy_now": middle(recent), "score/pass_at_1": middle(solved)},
    )


def ratio_explosion(chart: StageHistory) -> Finding | None:
    is_sequence = chart.setting("loss.surrogate", "clipped") == "sequence_clipped"
    limit = SEQUENCE_CLIP_SHARE if is_sequence else CLIP_SHARE
    clipped = persistent(chart.series("policy/clip_share"), lambda share: share > limit, NEED, WITHIN)
    ratios = persistent(chart.series("policy/ratio_max"), lambda ratio: ratio > RATIO_MAX, NEED, WITHIN)
    points = clipped or ratios
    if not points:
        return None
    seen = (
        f"{percent(middle(clipped), 0)} of the tokens are clipped" if clipped else f"ratios reach {middle(ratios):.3g}"
    )
    epochs = chart.setting("epochs_per_batch", 1)
    if epochs > 1:
        change = chart.change("epochs_per_batch", 1, "learn from each batch once")
    else:
        change = chart.slower("smaller updates between sampling and the last update of a step")
    return chart.finding(
        points,
        seen=f"{seen} in {len(points)} steps, with {_updates_per_step(chart)} updates a step",
        means="within a step the policy moves so far that the rollouts are no longer typical of it",
        change=change,
        figures={"policy/clip_share" if clipped else "policy/ratio_max": middle(points)},
    )


def gradient_spikes(chart: StageHistory) -> Finding | None:
    norms, limit = chart.series("policy/grad_norm"), chart.setting("optimizer.max_grad_norm", 1.0)
    floor = limit if limit < float("inf") else 0.0
    high = dict(spikes(norms, GRADIENT_FACTOR, floor, GRADIENT_BEFORE))
    marked = [(step, norm if step in high else 0.0) for step, norm in norms]
    points = persistent(marked, lambda norm: norm > 0, NEED, 2 * WITHIN)
    if not points:
        return None
    usual = middle(norms)
    if floor:
        change = chart.slower("smaller updates; a clipped spike still decides the direction of its step")
    else:
        change = chart.change("optimizer.max_grad_norm", 1.0, "clip them")
    return chart.finding(
        points,
        seen=f"the gradient's norm is {middle(points):.3g} in {len(points)} steps and {usual:.3g} in the others",
        means="a few batches with extreme tokens decide where the policy goes",
        change=change,
        figures={"spike": middle(points), "usual": usual},
    )


def updates_not_finite(chart: StageHistory) -> Finding | None:
    points = [point for point in chart.series("update/skipped") if point[1] > 0]
    skipped = sum(values_of(points))
    if skipped < MIN_SKIPPED:
        return None
    return chart.finding(
        points,
        seen=f"{skipped:.0f} updates had a loss or a gradient of NaN or inf, and were skipped",
        means="the numbers overflow; the run stops after max_nonfinite_updates of them in a row",
        change=chart.slower("smaller updates"),
        figures={"update/skipped": skipped},
    )


def learning_rate_too_small(chart: StageHistory) -> Finding | None:
    if not _has_bf16_weights(chart):
        return None
    counts = dict(chart.series("update/count"))
    rates = chart.series("policy/learning_rate")
    if len(rates) < min(MIN_UPDATE_STEPS, chart.planned_steps):
        return None
    travel = max(rate * counts.get(step, 1.0) for step, rate in rates) * chart.planned_steps
    if not 0 < travel < BF16_HALF_STEP:
        return None
    rate = max(values_of(rates))
    return chart.finding(
        rates,
        seen=f"at a learning rate of {rate:g} the {chart.planned_steps} steps move a weight by {travel:.1g} at most; "
        f"neighbours in bf16 are {2 * BF16_HALF_STEP:.1g} apart at 0.002",
        means="the model that samples is in bf16: its weights stay unchanged, however good the gradient is",
        change=chart.change("optimizer.learning_rate", rate * 10, "larger updates, or more steps"),
        figures={"policy/learning_rate": rate, "travel": travel},
    )


def engine_gap(chart: StageHistory) -> Finding | None:
    series = chart.series("engine/logprob_gap_mean")
    points = persistent(series, lambda gap: gap > ENGINE_GAP_NATS, GAP_NEED, WITHIN)
    if not points:
        return None
    is_corrected = chart.setting("loss.importance", "none") != "none"
    return chart.finding(
        points,
        seen=f"the engine's and the trainer's logprobs differ by {average(points):.2g} nats per token",
        means="rollouts come from a different distribution than the one being trained"
        + ("; the importance weights correct some of it" if is_corrected else ", and nothing corrects for it"),
        change=_closer_engine(chart, is_corrected),
        figures={"engine/logprob_gap_mean": average(points)},
        severity="watch" if is_corrected else "sick",
    )


def _closer_engine(chart: StageHistory, is_corrected: bool) -> Change:
    for key, off in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
        if chart.setting(f"sampling.{key}", off) != off:
            return chart.change(f"sampling.{key}", off, "the trainer does not apply it")
    if not is_corrected:
        return chart.change("loss.importance", "truncated", "weight tokens by how much the two disagree")
    return Change("sample with the trainer's own weights", "engine.name", "native")


def _has_bf16_weights(chart: StageHistory) -> bool:
    if chart.run_setting("model.lora", None):
        return False  # adapters are small and start at 0, where bf16 numbers are dense
    dtype = chart.run_setting("model.dtype", "auto")
    machine = chart.info.get("machine", {})
    return dtype == "bfloat16" or (dtype == "auto" and machine.get("device") == "cuda")


def _updates_per_step(chart: StageHistory) -> int:
    problems = chart.setting("problems_per_step", 1)
    per_update = chart.setting("problems_per_update", 0) or problems
    return int(chart.setting("epochs_per_batch", 1) * (problems // per_update))
