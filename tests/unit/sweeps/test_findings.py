"""Findings on made-up sweeps whose truth is known: what is there is found, what is not is not claimed."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest

from groupwise.sweeps.findings import find
from groupwise.sweeps.findings_words import SweepFinding, count, listed, percent_range
from groupwise.sweeps.folder import read_study
from groupwise.sweeps.sweep_records import Knob, SeedRun
from groupwise.types import StepRecord
from tests.unit.sweeps.made_up import (
    NUM_PROBLEMS,
    Truth,
    knob_of_answers,
    knob_of_finals,
    make_knob,
    slow_student_p,
    write_sweep,
)

CLAIMS = {"stops", "harms", "costs"}
KL = (
    Truth("0", 0.0, kl=0.4),
    Truth("0.02", 0.02, is_base=True),
    Truth("0.05", 0.05),
    Truth("0.2", 0.2, final=0.7),
    Truth("1", 1.0, final=0.1),
    Truth("∞", math.inf, final=0.1, kl=0.0),
)


def by_kind(knob: Knob) -> dict[str, list[SweepFinding]]:
    found: dict[str, list[SweepFinding]] = {}
    for finding in find(knob).findings:
        found.setdefault(finding.kind, []).append(finding)
        json.dumps(finding.to_json(), allow_nan=False)
    return found


def slow_problems_interval(first: float, second: float, z: Any) -> tuple[Any, Any]:
    """Wilson's intervals as the roots of (p - share)² = z² p (1 - p) / n, put together as Newcombe does."""
    ends = []
    for share in (first, second):
        a, b, c = 1 + z * z / NUM_PROBLEMS, -(2 * share + z * z / NUM_PROBLEMS), share * share
        root = numpy.sqrt(numpy.maximum(0, b * b - 4 * a * c))
        ends.append(((-b - root) / (2 * a), (-b + root) / (2 * a)))
    (low, high), (low_second, high_second) = ends
    down = numpy.hypot(first - low, high_second - second)
    up = numpy.hypot(high - first, second - low_second)
    return first - second - down, first - second + up


def slow_problems_p(first: float, second: float) -> float:
    """The first of many z at which the interval holds 0."""
    many = numpy.arange(0.0, 38.0, 0.0005)
    low, high = slow_problems_interval(first, second, many)
    return math.erfc(many[(low <= 0) & (high >= 0)][0] / math.sqrt(2))


def test_a_threshold() -> None:
    found = by_kind(make_knob(KL, name="KL-coefficient"))
    (stops,) = found["stops"]
    assert stops.sentence.startswith("KL coefficient ≥ 1 stops learning: ")
    assert stops.sentence.endswith("; three seeds.")
    assert stops.arms == ("arm-4", "arm-5")
    (costs,) = found["costs"]
    assert costs.sentence.startswith("KL coefficient at 0.2 costs ")
    (best,) = found["best"]
    assert best.figures["best"] in ("arm-0", "arm-1", "arm-2")
    assert len(best.figures["not_told_apart"]) == 2
    assert "are statistically indistinguishable from it" in best.sentence
    assert CLAIMS & found.keys() == {"stops", "costs"}


def test_a_threshold_from_below_and_a_dent_in_the_middle() -> None:
    low = [[0.1, 0.1, 0.11], [0.1, 0.12, 0.1], [0.9, 0.9, 0.91], [0.6, 0.6, 0.61], [0.9, 0.91, 0.92]]
    found = by_kind(knob_of_finals(low))
    assert [finding.sentence.split(":")[0] for finding in found["stops"]] == ["Knob ≤ 1 stops learning"]
    assert [finding.sentence.split(" costs")[0] for finding in found["costs"]] == ["Knob at 3"]


def test_stops_learning_is_said_of_nothing_that_learned() -> None:
    finals = [[0.95, 0.95, 0.96], [0.3, 0.31, 0.29]]
    assert "costs" in by_kind(knob_of_finals(finals, before=0.1))
    assert "stops" in by_kind(knob_of_finals(finals, before=0.3))
    assert "harms" in by_kind(knob_of_finals(finals, before=0.6))
    # Few problems: 0.3 is within the noise of 0.1, and yet no sign that nothing was learned.
    assert "costs" in by_kind(knob_of_finals(finals, before=0.1, num_problems=20))
    # Without an evaluation before training nobody knows.
    knob = knob_of_finals(finals, before=0.3)
    late = [replace(arm, runs=tuple(replace(run, evals=run.evals[1:]) for run in arm.runs)) for arm in knob.arms]
    assert "costs" in by_kind(replace(knob, arms=tuple(late)))


def test_arms_that_did_not_learn_are_the_first_thing_to_be_said() -> None:
    knob = knob_of_finals([[0.0, 0.0], [0.0, 0.0], [0.5, 0.6]], before=0.0)
    dead, skipped, alive = (
        replace(arm, runs=tuple(with_signal(run, share, norm) for run in arm.runs))
        for arm, (share, norm) in zip(knob.arms, [(0.0, 0.0), (0.0, None), (0.0, 0.1)], strict=True)
    )
    found = find(replace(knob, arms=(dead, skipped, alive)))
    assert found.findings[0] == found.headline
    assert found.headline.arms == (dead.name, skipped.name)
    assert "did not learn: no RL step had a gradient" in found.headline.sentence
    # One seed with signal in one step is enough to leave the arm alone.
    lively = replace(dead, runs=(dead.runs[0], with_signal(dead.runs[1], 0.1, 0.0)))
    assert "dead" not in by_kind(replace(knob, arms=(lively, alive)))
    # Runs of supervised stages alone record no signal.
    assert "dead" not in by_kind(knob)


def with_signal(run: SeedRun, share: float, grad_norm: float | None) -> SeedRun:
    """Give each step of a run a share of groups with signal and a gradient norm; None: no update was made."""
    norm = {} if grad_norm is None else {"policy/grad_norm": grad_norm}
    steps = [StepRecord(step, "rl", step, {"groups/signal_share": share} | norm) for step in (1, 2)]
    return replace(run, steps=tuple(steps))


def test_a_flat_knob_is_called_flat() -> None:
    found = by_kind(knob_of_finals([[0.95, 0.96, 0.97], [0.96, 0.95, 0.96], [0.97, 0.96, 0.95]]))
    assert found.keys() == {"flat"}
    sentence = found["flat"][0].sentence
    assert sentence.startswith(
        "The values of Knob are statistically indistinguishable with three seeds: 95.7 to 96.0 %; "
    )


def test_a_difference_that_seeds_do_not_carry_is_called_unclear() -> None:
    found = by_kind(knob_of_finals([[0.95, 0.99, 0.9], [0.85, 0.5, 0.9]]))
    assert found.keys() == {"unclear"}
    assert "but not significantly with three seeds" in found["unclear"][0].sentence


@pytest.mark.parametrize(
    ("spreads", "share"),
    [((0.02,) * 5, 0.8), ((0.08,) * 5, 0.7), ((0.15, 0.02, 0.02, 0.02, 0.02), 0.6)],
    ids=["problems", "seeds", "one unsteady arm"],
)
def test_nothing_is_claimed_of_knobs_that_do_nothing(spreads: tuple[float, ...], share: float) -> None:
    """200 sweeps with three seeds. The rate is at most 5 %; 200 draws of that stray by 3 % (two deviations)."""
    num_false = 0
    for draw in range(200):
        generator = random.Random(f"{spreads} {draw}")
        finals = []
        for spread in spreads:
            skills = [share + generator.gauss(0, spread) for _ in range(3)]
            finals.append([sum(generator.random() < s for _ in range(NUM_PROBLEMS)) / NUM_PROBLEMS for s in skills])
        num_false += bool(CLAIMS & by_kind(knob_of_finals(finals)).keys())
    assert num_false <= 16


def draw_answers(generator: random.Random, shifts: Sequence[float], spread: float) -> list[list[list[bool]]]:
    """Scores of arms that shift all problems, whose difficulties they share; in logits, three seeds each."""
    problems = [generator.gauss(0.5, 3) for _ in range(NUM_PROBLEMS)]
    answers = []
    for shift in shifts:
        skills = [shift + generator.gauss(0, spread) for _ in range(3)]
        answers.append(
            [[generator.random() < 1 / (1 + math.exp(-skill - ease)) for ease in problems] for skill in skills]
        )
    return answers


@pytest.mark.parametrize("spread", [0.0, 0.3])
def test_nor_where_problems_are_paired(spread: float) -> None:
    num_false = 0
    for draw in range(200):
        answers = draw_answers(random.Random(f"{spread} {draw}"), [0.0] * 3, spread)
        num_false += bool(CLAIMS & by_kind(knob_of_answers(answers)).keys())
    assert num_false <= 16


def test_pairing_problems_finds_what_their_difficulty_hides() -> None:
    """Nine points lost, on 200 problems, in 40 sweeps: 28 found it where problems were paired and 1 where not."""
    num_found = [0, 0]
    for draw in range(40):
        answers = draw_answers(random.Random(draw), [0.0, 0.0, 0.0, -0.75], 0.05)
        finals = [[sum(rights) / NUM_PROBLEMS for rights in arm] for arm in answers]
        for place, knob in enumerate((knob_of_answers(answers), knob_of_finals(finals))):
            findings = by_kind(knob)
            num_found[place] += any("arm-3" in one.arms for kind in CLAIMS for one in findings.get(kind, []))
    assert num_found[0] >= 20
    assert num_found[1] <= 8


def test_nothing_beside_the_score_is_claimed_either() -> None:
    """Whole runs: speed, side effects, spreads and collapses of arms that are all alike."""
    claimed = [
        by_kind(make_knob([Truth(str(v), float(v), is_base=v == 0, final=0.8) for v in range(4)], draw=draw)).keys()
        - {"flat", "unclear"}
        for draw in range(60)
    ]
    assert sum(map(bool, claimed)) <= 6, claimed


def test_what_is_there_is_found() -> None:
    """Ten points lost, seeds two points apart: three seeds show it in most sweeps (three of four were measured)."""
    num_found = 0
    for draw in range(60):
        generator = random.Random(draw)
        finals = []
        for share in (0.95, 0.95, 0.95, 0.95, 0.85):
            skills = [share + generator.gauss(0, 0.02) for _ in range(3)]
            finals.append([sum(generator.random() < s for _ in range(NUM_PROBLEMS)) / NUM_PROBLEMS for s in skills])
        found = by_kind(knob_of_finals(finals))
        num_found += any("arm-4" in finding.arms for finding in found.get("costs", []))
    assert num_found >= 36


def test_one_seed_says_so_and_claims_only_what_problems_show() -> None:
    for finding in find(make_knob(KL, seeds=(0,))).findings:
        assert "one seed is a single sample" in finding.sentence
    assert by_kind(knob_of_finals([[0.95], [0.91]])).keys() == {"flat"}
    assert "costs" in by_kind(knob_of_finals([[0.95], [0.6]]))


def test_missing_seeds_are_counted_and_named() -> None:
    truths = [Truth("a", 1.0, is_base=True), Truth("b", 2.0, final=0.4, stops_after={1: 20, 2: 0})]
    found = by_kind(make_knob(truths))
    (unfinished,) = found["unfinished"]
    assert unfinished.sentence == "Knob: not finished: b (seeds 1 and 2); scores are from finished runs only."
    assert all(
        "one to three seeds" in finding.sentence
        for kind in ("costs", "best", "unclear")
        for finding in found.get(kind, [])
    )


def test_nothing_finished_and_one_arm_alone() -> None:
    cut_off = {0: 20, 1: 20, 2: 20}
    found = by_kind(make_knob([Truth("a", 1.0, stops_after=cut_off), Truth("b", 2.0, stops_after=cut_off)]))
    assert found["none"][0].sentence == "Knob: no finished run has been evaluated yet."
    found = by_kind(make_knob([Truth("a", 1.0), Truth("b", 2.0, stops_after=cut_off)]))
    assert "no other arm to compare it with yet" in found["none"][0].sentence


def test_a_failed_arm_is_told_with_its_reason(tmp_path: Path) -> None:
    reason = "Traceback\nRuntimeError: out of memory"
    truths = [Truth("1", 1.0), Truth("2", 2.0), Truth("16", 16.0, failure=dict.fromkeys((0, 1, 2), reason))]
    truths[-1] = replace(truths[-1], stops_after={0: 3, 1: 3, 2: 0})
    one = find(read_study(write_sweep(tmp_path, {"epochs": truths})).knobs[0])
    (failed,) = [finding for finding in one.findings if finding.kind == "failed"]
    assert failed.sentence == (
        "Epochs at 16 failed with 3 of 3 seeds: seed 2 failed after 0 steps (RuntimeError: out of memory)."
    )
    assert failed.figures["seeds"] == [0, 1, 2]
    assert [arm.label for arm in one.scores.arms] == ["1", "2"]


def test_values_without_an_order() -> None:
    found = by_kind(make_knob([Truth("grpo", "grpo"), Truth("weak", "weak", final=0.3)], name="algorithm"))
    assert found["costs"][0].sentence.startswith("Algorithm weak costs ")
    assert " with grpo; three seeds." in found["costs"][0].sentence
    found = by_kind(make_knob([Truth("grpo", "grpo"), Truth("weak", "weak", final=0.3)], name="arms"))
    assert found["costs"][0].sentence.startswith("weak costs ")


def test_speed() -> None:
    slow, fast = Truth("1", 1.0, is_base=True, time_constant=9.0), Truth("4", 4.0, time_constant=2.0)
    (speed,) = by_kind(make_knob([slow, fast]))["speed"]
    assert speed.sentence.startswith("Knob at 4 reaches ")
    assert " in fewer steps than 1: " in speed.sentence
    assert "final scores are statistically indistinguishable" in speed.sentence
    (speed,) = by_kind(make_knob([replace(slow, is_base=False), replace(fast, is_base=True)]))["speed"]
    assert " in more steps than 4: " in speed.sentence


@pytest.mark.parametrize("seeds", [(0, 1, 2), (0,)])
def test_side_effects(seeds: tuple[int, ...]) -> None:
    base = Truth("1", 1.0, is_base=True, clip=0.0)
    found = by_kind(make_knob([base, Truth("8", 8.0, clip=0.05, kl=0.5, grad_norm=3.0)], seeds=seeds))
    metrics = {finding.figures["metric"]: finding.sentence for finding in found["side_effect"]}
    assert metrics.keys() == {"kl/ref_k3", "policy/clip_share", "policy/grad_norm"}
    assert "against 0.0 % at 1, while scores are statistically indistinguishable" in metrics["policy/clip_share"]
    # Twice as much is no side effect, and a better score pays for one.
    assert "side_effect" not in by_kind(make_knob([base, Truth("8", 8.0, kl=0.1, clip=0.004)], seeds=seeds))
    worse_base = replace(base, final=0.3)
    assert "side_effect" not in by_kind(make_knob([worse_base, Truth("8", 8.0, kl=0.5)], seeds=seeds))


@pytest.mark.parametrize("seeds", [(0, 1, 2), (0,)])
def test_rollouts_that_earn_little_while_held_out_answers_are_right(seeds: tuple[int, ...]) -> None:
    base, hidden = Truth("0", 0.0, is_base=True), Truth("1", 1.0, reward_share=0.1)
    (found,) = by_kind(make_knob([base, hidden], seeds=seeds))["side_effect"]
    assert found.figures["metric"] == "reward/mean"
    assert "Knob at 1 ends with a rollout reward of 0." in found.sentence
    assert "times as much), while scores are statistically indistinguishable" in found.sentence
    # More reward is no side effect, half of it too little to tell; a worse score says it already.
    assert "side_effect" not in by_kind(make_knob([replace(hidden, is_base=True), replace(base, is_base=False)]))
    assert "side_effect" not in by_kind(make_knob([base, replace(hidden, reward_share=0.5)], seeds=seeds))
    assert "side_effect" not in by_kind(make_knob([base, replace(hidden, final=0.3)], seeds=seeds))


def test_seeds_that_disagree_and_runs_that_collapse() -> None:
    steady = [Truth(str(v), float(v), is_base=v == 0) for v in range(4)]
    found = by_kind(make_knob([*steady, Truth("16", 16.0, collapses_to=0.2)]))
    assert found["spread"][0].sentence.startswith("Knob at 16: seeds disagree (")
    (collapsed,) = found["collapsed"]
    assert collapsed.sentence.startswith("Knob at 16, seed 2, collapsed: from ")
    assert collapsed.figures["last"]["value"] < 0.5 * collapsed.figures["best"]["value"]


def test_scores_at_the_ceiling_make_no_other_arm_unsteady() -> None:
    """Two problems of 200 are the problems' noise, though the others do not vary at all."""
    finals = [[1.0] * 3, [1.0] * 3, [1.0] * 3, [0.98, 0.99, 1.0]]
    assert by_kind(knob_of_finals(finals)).keys() == {"flat"}


def test_figures_can_be_recomputed_from_the_run_directories(tmp_path: Path) -> None:
    """The same computation without our code: lines of JSON, and numpy."""
    write_sweep(tmp_path, {"kl": KL})
    one = find(read_study(tmp_path).knobs[0])
    finals = {
        arm.name: [
            [json.loads(line)["pass_at_1"] for line in (arm / f"seed-{seed}" / "evals.jsonl").read_text().splitlines()]
            for seed in range(3)
        ]
        for arm in (tmp_path / "runs").iterdir()
    }
    num_compared = 0
    table = numpy.array([[evals[-1] for evals in finals[arm.name]] for arm in one.scores.arms])
    residual = table - table.mean(1, keepdims=True) - table.mean(0, keepdims=True) + table.mean()
    shared = float((residual**2).sum() / 10)
    for finding in one.findings:
        figures = finding.to_json()["figures"]
        for arm in figures.get("arms", []):
            last = [evals[-1] for evals in finals[arm["arm"]]]
            assert arm["final_by_seed"] == {str(seed): value for seed, value in enumerate(last)}
            assert arm["final"]["value"] == pytest.approx(numpy.mean(last))
            assert arm["before_by_seed"] == {str(seed): evals[0] for seed, evals in enumerate(finals[arm["arm"]])}
        for pair in figures.get("comparisons", []):
            first, second = (numpy.array([evals[-1] for evals in finals[pair[end]]]) for end in ("first", "second"))
            assert pair["difference"] == pytest.approx(float((first - second).mean()))
            error = max(math.sqrt(2 * shared / 3), float((first - second).std(ddof=1)) / math.sqrt(3))
            is_shared = "spread of all arms" in pair["method"]
            degrees, quantile = (10, 2.228139) if is_shared else (2, 4.302653)
            low, high = slow_problems_interval(first.mean(), second.mean(), 1.96)
            width = max(high - low, 2 * quantile * error)
            assert pair["high"] - pair["low"] == pytest.approx(width, abs=1e-5) or -1 in (pair["low"], -pair["high"])
            p = max(slow_student_p(pair["difference"] / error, degrees), slow_problems_p(first.mean(), second.mean()))
            assert pair["p"] == pytest.approx(p, rel=0.01, abs=1e-7)
            num_compared += 1
    assert num_compared > 5


def test_words() -> None:
    assert percent_range([0.958, 0.972]) == "95.8 to 97.2 %"
    assert percent_range([0.9701, 0.97]) == "97.0 %"
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert (count(1, "seed"), count(3, "seed"), count(40, "seed")) == ("one seed", "three seeds", "40 seeds")
