"""Checks of the policy and its updates: KL, entropy, ratio, gradient, learning rate, engine against trainer."""

from __future__ import annotations

import math

from groupwise.base.text_layout import percent
from groupwise.doctor.series import average, jumps, middle, persistent, spikes, values_of
from groupwise.doctor.stage_history import RECENT_STEPS, Change, Finding, StageHistory

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
GAP_GROWTH, GROWN_GAP_NATS = 10.0, 0.01
"""A gap that grows tenfold is not the rounding that the stage began with, unless it stays below what bf16 rounds."""


def kl_spike(stage: StageHistory) -> Finding | None:
    series = stage.series("kl/ref_k3")
    first = series[:KL_BEFORE] if stage.begins_at_start else []
    points = persistent(first, lambda kl: kl > KL_FAR_NATS, NEED, WITHIN)
    points = points or jumps(series, KL_JUMP_FACTOR, KL_JUMP_NATS, KL_BEFORE, KL_AFTER)
    if not points:
        return None
    before = [point for point in series if point[0] < points[0][0]][-KL_BEFORE:]
    seen = f"jumped from {middle(before):.2g} to" if before else "was from the first step on"
    return stage.finding(
        points,
        seen=f"KL from the reference {seen} {middle(points):.2g} nats a token, and stayed",
        means="a few updates moved the policy far from where it began; what it knew besides the task may be lost",
        change=stage.slower("smaller updates; go back to a checkpoint before the jump"),
        figures={"kl_before": middle(before) if before else 0.0, "kl_after": middle(points)},
    )


def kl_stuck_at_zero(stage: StageHistory) -> Finding | None:
    recent = stage.recent("kl/ref_k3")
    highest = max(map(abs, values_of(recent)), default=0.0)
    if len(recent) < RECENT_STEPS or highest > KL_ZERO_NATS:
        return None
    rate = stage.setting("optimizer.learning_rate", 1e-6)
    gradient = stage.recent("policy/grad_norm")
    change = stage.change("optimizer.learning_rate", rate * 10, "larger updates")
    if math.isinf(stage.setting("kl.coefficient", 0.0)):
        change = stage.change(
            "kl.coefficient", 0.02, "at inf the divergence is the whole loss, and rewards count for nothing"
        )
    return stage.finding(
        recent,
        seen=f"KL from the reference is at most {highest:.1g} after updates with a gradient of "
        f"{middle(gradient) if gradient else 0:.2g} and a learning rate of {rate:g}",
        means="the policy is still the reference: updates do not reach the weights, or are too small to change them",
        change=change,
        figures={"kl/ref_k3": middle(recent), "optimizer.learning_rate": rate},
    )


def entropy_collapse(stage: StageHistory) -> Finding | None:
    points, solved = stage.series("policy/entropy_nats"), stage.recent("score/pass_at_1")
    if len(points) < 2 * RECENT_STEPS or not solved or stage.is_solved:
        return None
    start, recent = middle(points[:RECENT_STEPS]), points[-RECENT_STEPS:]
    is_low = middle(recent) < ENTROPY_NATS and middle(recent) < ENTROPY_SHARE * start
    if not is_low or stage.is_rising:
        return None
    if _updates_per_step(stage) > 1 and stage.setting("loss.clip_high", 0.2) < 0.28:
        change = stage.change("loss.clip_high", 0.28, "let unlikely tokens grow (DAPO's clip-higher)")
    else:
        change = stage.slower("smaller updates, from a checkpoint before this; or raise sampling.temperature")
    return stage.finding(
        recent,
        seen=f"entropy went from {start:.2f} to {middle(recent):.3f} nats per token, "
        f"at pass@1 {percent(middle(solved), 0)}",
        means="the policy became certain before it was right: it no longer tries anything else",
        change=change,
        figures={"entropy_start": start, "entropy_now": middle(recent), "score/pass_at_1": middle(solved)},
    )


def ratio_explosion(stage: StageHistory) -> Finding | None:
    is_sequence = stage.setting("loss.surrogate", "clipped") == "sequence_clipped"
    limit = SEQUENCE_CLIP_SHARE if is_sequence else CLIP_SHARE
    clipped = persistent(stage.series("policy/clip_share"), lambda share: share > limit, NEED, WITHIN)
    ratios = persistent(stage.series("policy/ratio_max"), lambda ratio: ratio > RATIO_MAX, NEED, WITHIN)
    points = clipped or ratios
    if not points:
        return None
    seen = (
        f"{percent(middle(clipped), 0)} of the tokens are clipped" if clipped else f"ratios reach {middle(ratios):.3g}"
    )
    epochs = stage.setting("epochs_per_batch", 1)
    if epochs > 1:
        change = stage.change("epochs_per_batch", 1, "learn from each batch once")
    else:
        change = stage.slower("smaller updates between sampling and the last update of a step")
    return stage.finding(
        points,
        seen=f"{seen} in {len(points)} steps, with {_updates_per_step(stage)} updates a step",
        means="within a step the policy moves so far that the rollouts are no longer typical of it",
        change=change,
        figures={"policy/clip_share" if clipped else "policy/ratio_max": middle(points)},
    )


def gradient_spikes(stage: StageHistory) -> Finding | None:
    norms, limit = stage.series("policy/grad_norm"), stage.setting("optimizer.max_grad_norm", 1.0)
    floor = limit if limit < float("inf") else 0.0
    high = dict(spikes(norms, GRADIENT_FACTOR, floor, GRADIENT_BEFORE))
    marked = [(step, norm if step in high else 0.0) for step, norm in norms]
    points = persistent(marked, lambda norm: norm > 0, NEED, 2 * WITHIN)
    if not points:
        return None
    usual = middle(norms)
    if floor:
        change = stage.slower("smaller updates; a clipped spike still decides the direction of its step")
    else:
        change = stage.change("optimizer.max_grad_norm", 1.0, "clip them")
    return stage.finding(
        points,
        seen=f"the gradient's norm is {middle(points):.3g} in {len(points)} steps and {usual:.3g} in the others",
        means="a few batches with extreme tokens decide where the policy goes",
        change=change,
        figures={"spike": middle(points), "usual": usual},
    )


def updates_not_finite(stage: StageHistory) -> Finding | None:
    points = [point for point in stage.series("update/skipped") if point[1] > 0]
    skipped = sum(values_of(points))
    if skipped < MIN_SKIPPED:
        return None
    return stage.finding(
        points,
        seen=f"{skipped:.0f} updates had a loss or a gradient of NaN or inf, and were skipped",
        means="the numbers overflow; the run stops after max_nonfinite_updates of them in a row",
        change=stage.slower("smaller updates"),
        figures={"update/skipped": skipped},
    )


def learning_rate_too_small(stage: StageHistory) -> Finding | None:
    if not _has_bf16_weights(stage):
        return None
    counts = dict(stage.series("update/count"))
    rates = stage.series("policy/learning_rate")
    if len(rates) < min(MIN_UPDATE_STEPS, stage.planned_steps):
        return None
    travel = max(rate * counts.get(step, 1.0) for step, rate in rates) * stage.planned_steps
    if not 0 < travel < BF16_HALF_STEP:
        return None
    rate = max(values_of(rates))
    return stage.finding(
        rates,
        seen=f"at a learning rate of {rate:g} the {stage.planned_steps} steps move a weight by {travel:.1g} at most; "
        f"neighbours in bf16 are {2 * BF16_HALF_STEP:.1g} apart at 0.002",
        means="the model that samples is in bf16: its weights stay unchanged, however good the gradient is",
        change=stage.change("optimizer.learning_rate", rate * 10, "larger updates, or more steps"),
        figures={"policy/learning_rate": rate, "travel": travel},
    )


def engine_gap(stage: StageHistory) -> Finding | None:
    series = stage.series("engine/logprob_gap_mean")
    if not series:
        return None
    at_start = middle(series[:GAP_NEED])
    limit = min(ENGINE_GAP_NATS, max(GROWN_GAP_NATS, GAP_GROWTH * at_start))
    points = persistent(series, lambda gap: gap > limit, GAP_NEED, WITHIN)
    if not points:
        return None
    is_corrected = stage.setting("loss.importance", "none") != "none"
    return stage.finding(
        points,
        seen=f"the engine's and the trainer's logprobs differ by {average(points):.2g} nats per token, "
        f"{at_start:.2g} in the first steps",
        means="rollouts come from a different distribution than the one being trained"
        + ("; the importance weights correct some of it" if is_corrected else ", and nothing corrects for it"),
        change=_closer_engine(stage, is_corrected),
        figures={"engine/logprob_gap_mean": average(points)},
        severity="warning" if is_corrected else "problem",
    )


def _closer_engine(stage: StageHistory, is_corrected: bool) -> Change:
    if not is_corrected:
        return stage.change("loss.importance", "truncated", "weight tokens by how much the two disagree")
    return Change("sample with the trainer's own weights", "engine.name", "native")


def _has_bf16_weights(stage: StageHistory) -> bool:
    if stage.run_setting("model.lora", None):
        return False  # adapters are small and start at 0, where bf16 numbers are dense
    dtype = stage.run_setting("model.dtype", "auto")
    machine = stage.info.get("machine", {})
    return dtype == "bfloat16" or (dtype == "auto" and machine.get("device") == "cuda")


def _updates_per_step(stage: StageHistory) -> int:
    problems = stage.setting("problems_per_step", 1)
    per_update = stage.setting("problems_per_update", 0) or problems
    return int(stage.setting("epochs_per_batch", 1) * (problems // per_update))
