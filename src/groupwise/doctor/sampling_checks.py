"""Checks of what is sampled: zero-variance groups, repetition, length, another language, words after the answer."""

from __future__ import annotations

from groupwise.base.text_layout import percent
from groupwise.doctor.series import Point, average, has_risen, middle, values_of
from groupwise.doctor.stage_history import RECENT_STEPS, Change, Finding, Severity, StageHistory
from groupwise.doctor.text_signs import TextSigns

NEARLY_SOLVED = 0.75
"""Training pass@1 from which zero-variance groups that are mostly all correct are a success and not a problem."""

EARLY_STEPS = 40
"""Long enough for a policy that learns from few groups to show it in its reward; such a run is not reported."""
MIN_EARLY_STEPS = 10
SIGNAL_SHARE = 0.3
"""Below this, more than two thirds of the sampling teaches nothing."""
NO_SIGNAL_SHARE = 0.01
"""Below this nothing is learned, early or late."""

OFTEN_CUT_SHARE = 0.2
"""Often enough to make reasoning look unrewarded."""
TRUNCATED_SHARE = 0.5
"""Half of the completions never reach their answer."""
IDENTICAL_SHARE = 0.5
"""Share of the rollouts that could be identical. Long texts repeat only when sampling has lost its variety."""
SHORT_TOKENS = 32
SHORT_IDENTICAL_SHARE = 0.95
"""Short answers repeat by chance, so nearly all of them must be identical."""

GREEDY_TEMPERATURE = 0.3
"""At this temperature sampling nearly always takes the most likely token."""
MIN_GREEDY_STEPS = 5
"""The recipe says it already; a few steps confirm it."""

LENGTH_FACTOR = 3.0
LENGTH_CHANGE_TOKENS = 16
"""From 3 to 10 tokens is threefold, too, but means nothing."""

FIRST_STEPS = 3
"""Reasoning that does not pay is gone within ten steps; only the very first ones show what it was."""
REASONING_TOKENS = 64
"""A completion this long holds more than an answer."""

TEXT_LOOKS = 3
"""A sign must show in each of the newest N steps whose completions were read."""
FOREIGN_COMPLETIONS_SHARE = 0.1
RUNNING_ON_SHARE = 0.5
MIN_MARKED = 8
"""With fewer marked answers a sample says nothing."""


def dead_groups(stage: StageHistory) -> Finding | None:
    if stage.setting("loss.advantage", "") == "batch_mean_std":
        return None  # rewards are compared over the batch, so a zero-variance group teaches, too
    signal, reward = stage.series("groups/signal_share"), stage.series("reward/mean")
    early_end = stage.steps[0].step + EARLY_STEPS if stage.steps else 0
    early = [point for point in signal if point[0] < early_end] if stage.begins_at_start else []
    needed = max(MIN_EARLY_STEPS, min(EARLY_STEPS, stage.planned_steps))
    recent = signal[-RECENT_STEPS:]
    if len(early) >= needed and average(early) < SIGNAL_SHARE and not has_risen(reward[: len(early)]):
        # It recovered later, or has little left to learn: costly, but not fatal.
        points, is_fatal = early, not (has_risen(reward) or stage.is_solved)
    elif len(recent) == RECENT_STEPS and average(recent) < NO_SIGNAL_SHARE and not stage.is_solved:
        points, is_fatal = recent, True
    else:
        return None
    within = range(points[0][0], points[-1][0] + 1)
    wrong = sum(value for step, value in stage.series("groups/dead_all_wrong") if step in within)
    right = sum(value for step, value in stage.series("groups/dead_all_correct") if step in within)
    passes = stage.recent("score/pass_at_1")
    if right > wrong and passes and middle(passes) >= NEARLY_SOLVED:
        return None
    why = "too hard" if wrong >= right else "too easy"
    return stage.finding(
        points,
        seen=f"only {percent(average(points), 0)} of the groups have rewards that differ; zero-variance groups: "
        f"{wrong:.0f} all wrong, {right:.0f} all correct; the reward does not rise",
        means=f"a group of equal rewards teaches nothing, and most are: the problems are {why} for this policy",
        change=_livelier_groups(stage, is_hard=wrong >= right),
        figures={"groups/signal_share": average(points), "dead_all_wrong": wrong, "dead_all_correct": right},
        severity="problem" if is_fatal else "warning",
    )


def _livelier_groups(stage: StageHistory, is_hard: bool) -> Change:
    if stage.setting("curriculum.kind", "none") == "none":
        advice = "sample the problems that the policy solves only sometimes"
        advice += "; or put a short SFT stage first, or give partial credit" if is_hard else "; or take harder ones"
        return stage.change("curriculum.kind", "pass_rate", advice)
    doubled = 2 * stage.setting("rollouts_per_problem", 8)
    return stage.change("rollouts_per_problem", doubled, "in a larger group it is more likely that one rollout differs")


def truncation(stage: StageHistory) -> Finding | None:
    recent = stage.recent("rollouts/truncated_share")
    if len(recent) < RECENT_STEPS or middle(recent) < TRUNCATED_SHARE or stage.is_rising:
        return None
    limit = stage.setting("sampling.max_new_tokens", 256)
    return stage.finding(
        recent,
        seen=f"{percent(middle(recent), 0)} of the rollouts are cut off at max_new_tokens = {limit}",
        means="a completion that is cut off has no answer: it is scored wrong, however good its reasoning is",
        change=stage.change("sampling.max_new_tokens", 2 * limit, "let completions finish"),
        figures={"rollouts/truncated_share": middle(recent), "max_new_tokens": float(limit)},
    )


def nearly_greedy(stage: StageHistory) -> Finding | None:
    temperature = stage.setting("sampling.temperature", 1.0)
    shares = _identical_of_possible(stage)
    if temperature > GREEDY_TEMPERATURE or len(shares) < MIN_GREEDY_STEPS or not _are_alike(stage, shares):
        return None
    count = stage.setting("rollouts_per_problem", 8)
    return stage.finding(
        shares,
        seen=f"{percent(middle(shares), 0)} of the rollouts that could be unlike the others of their group are not, at "
        f"temperature {temperature:g} in groups of {count}",
        means="a group teaches by how its answers differ, and here the same answer is sampled again and again; KL and "
        f"gradients are those of a distribution {1 / temperature:.0f} times as sharp as the model's, and may explode",
        change=stage.change("sampling.temperature", 1.0, "sample from the model itself; try larger groups after that"),
        figures={"identical_of_possible": middle(shares), "sampling.temperature": temperature},
    )


def identical_completions(stage: StageHistory) -> Finding | None:
    recent, lengths = _identical_of_possible(stage)[-RECENT_STEPS:], stage.recent("rollouts/length_mean_tokens")
    if len(recent) < RECENT_STEPS or stage.is_rising or not _are_alike(stage, recent):
        return None
    temperature = stage.setting("sampling.temperature", 1.0)
    return stage.finding(
        recent,
        seen=f"{percent(middle(recent), 0)} of the rollouts that could be unlike the others of their group are not; "
        f"their median length is {middle(lengths):.0f} tokens",
        means="the policy has only one answer left per problem, so there is nothing to compare",
        change=stage.change(
            "sampling.temperature",
            1.0 if temperature < 1 else round(temperature + 0.2, 2),
            "sample more widely, from a checkpoint before this began; or add an SFT stage on the run's own rollouts "
            '(source = "rollouts"), which made groups differ again on Countdown',
        ),
        figures={"identical_of_possible": middle(recent), "rollouts/length_mean_tokens": middle(lengths)},
    )


def _identical_of_possible(stage: StageHistory) -> list[Point]:
    groups, rollouts = dict(stage.series("groups/count")), dict(stage.series("rollouts/count"))
    return [
        # One rollout of each group is always the first of its kind.
        (step, value / (1 - groups[step] / rollouts[step]))
        for step, value in stage.series("rollouts/identical_share")
        if 0 < groups.get(step, 0.0) < rollouts.get(step, 0.0)
    ]


def _are_alike(stage: StageHistory, shares: list[Point]) -> bool:
    """Whether rollouts are more alike than their length and their pass rate explain."""
    lengths = stage.recent("rollouts/length_mean_tokens")
    if not lengths or stage.is_solved:
        return False
    return middle(shares) >= (SHORT_IDENTICAL_SHARE if middle(lengths) < SHORT_TOKENS else IDENTICAL_SHARE)


def length_collapse(stage: StageHistory) -> Finding | None:
    before, after = _length_change(stage)
    if after >= before:
        return None
    if stage.setting("reward.length_cost", 0.0) > 0:
        change = stage.change("reward.length_cost", 0.0, "the reward pays for short completions")
    elif stage.setting("reward.overlong_buffer_share", 0.0) > 0:
        change = stage.change("reward.overlong_buffer_share", 0.0, "long completions are penalized before the limit")
    else:
        change = stage.slower("smaller updates; and read completions: does a bare answer earn a reward?")
    means = "the policy stops reasoning, or ends at once, and is not right more often"
    return _length_finding(stage, "problem", before, "did not rise", means, change)


def reasoning_dropped(stage: StageHistory) -> Finding | None:
    """Completions shrank to a bare answer while the reward rose: short answers pay, and their cost is not scored."""
    points, rewards = stage.series("rollouts/length_mean_tokens"), stage.series("reward/mean")
    if len(points) < RECENT_STEPS or stage.setting("reward.length_cost", 0.0) > 0 or stage.is_solved:
        return None
    before, after = middle(points[:FIRST_STEPS]), middle(points[-RECENT_STEPS:])
    has_paid = middle(rewards[-RECENT_STEPS:]) > middle(rewards[:FIRST_STEPS])
    if before < REASONING_TOKENS or after > SHORT_TOKENS or before <= LENGTH_FACTOR * after or not has_paid:
        return None
    if length_collapse(stage) is not None:
        return None
    cut = stage.series("rollouts/truncated_share")[:FIRST_STEPS]
    limit = stage.setting("sampling.max_new_tokens", 0)
    if limit and cut and middle(cut) >= OFTEN_CUT_SHARE:
        advice = f"{percent(middle(cut), 0)} were cut off at first and earned nothing: let them finish; or pay less "
        change = stage.change("sampling.max_new_tokens", 2 * limit, advice + "for a near miss (reward.part_weights)")
    else:
        change = stage.slower("smaller updates; or pay less for near misses (reward.part_weights) if guesses earn any")
    means = "the policy answers at once: a guess earns more than reasoning that is cut off or goes wrong"
    return _length_finding(stage, "warning", before, "rose", means, change)


def length_growth(stage: StageHistory) -> Finding | None:
    before, after = _length_change(stage)
    if after <= before:
        return None
    if stage.setting("loss.weights", "") == "sequence_mean":
        advice = "with a mean per completion, long wrong answers are penalized less per token"
        change = stage.change("loss.weights", "constant", advice)
    else:
        change = _pay_for_brevity(stage)
    means = "the policy writes more and is not right more often; each step costs more"
    return _length_finding(stage, "warning", before, "did not rise", means, change)


def _length_change(stage: StageHistory) -> tuple[float, float]:
    """Return a length that changed a lot while the reward did not rise, before and after; (0, 0) if it did not."""
    points = stage.series("rollouts/length_mean_tokens")
    if len(points) < 2 * RECENT_STEPS or has_risen(stage.series("reward/mean")):
        return 0.0, 0.0
    before, after = middle(points[:RECENT_STEPS]), middle(points[-RECENT_STEPS:])
    is_large = max(before, after) > LENGTH_FACTOR * min(before, after)
    return (before, after) if is_large and abs(after - before) >= LENGTH_CHANGE_TOKENS else (0.0, 0.0)


def _length_finding(
    stage: StageHistory, severity: Severity, before: float, reward: str, means: str, change: Change
) -> Finding:
    recent = stage.recent("rollouts/length_mean_tokens")
    after = middle(recent)
    seen = f"completions went from {before:.0f} to {after:.0f} tokens, and the reward {reward} with that"
    figures = {"length_before_tokens": before, "length_after_tokens": after}
    return stage.finding(recent, seen=seen, means=means, change=change, figures=figures, severity=severity)


def _pay_for_brevity(stage: StageHistory) -> Change:
    return stage.change("reward.length_cost", 0.1, "makes the shorter of two right answers worth more")


def other_writing_system(stage: StageHistory) -> Finding | None:
    signs = [sign for sign in stage.signs if sign.num_read][-TEXT_LOOKS:]
    shares = [(sign.step, sign.num_foreign / sign.num_read) for sign in signs]
    if len(shares) < TEXT_LOOKS or min(values_of(shares)) < FOREIGN_COMPLETIONS_SHARE:
        return None
    return stage.finding(
        shares,
        seen=f"{percent(average(shares), 0)} of the completions that were read are in {signs[-1].foreign_script} "
        "letters, and their prompts are not",
        means="nothing in the reward says which language to use; people can no longer check the reasoning",
        change=stage.closer("stay near the model that wrote the prompt's language; or reward the language"),
        figures={"foreign_share": average(shares)},
    )


def runs_on_after_answer(stage: StageHistory) -> Finding | None:
    signs = [sign for sign in stage.signs if sign.num_marked >= MIN_MARKED][-TEXT_LOOKS:]
    shares = [(sign.step, sign.num_running_on / sign.num_marked) for sign in signs]
    if len(shares) < TEXT_LOOKS or min(values_of(shares)) < RUNNING_ON_SHARE:
        return None
    return stage.finding(
        shares,
        seen=f"{percent(average(shares), 0)} of the completions with a marked answer continue after it",
        means="the run samples and learns from tokens that no reward is about; often a base model invents the next "
        "question",
        change=_stop_at_answer(stage, signs),
        figures={"running_on_share": average(shares)},
        severity="warning",
    )


def _stop_at_answer(stage: StageHistory, signs: list[TextSigns]) -> Change:
    is_tagged = sum(sign.num_closed_by_tag for sign in signs) * 2 > sum(sign.num_marked for sign in signs)
    if is_tagged and "</answer>" not in stage.setting("sampling.stop_strings", ()):
        return stage.change("sampling.stop_strings", ["</answer>"], "stop there (evaluation.stop_strings as well)")
    return _pay_for_brevity(stage)
