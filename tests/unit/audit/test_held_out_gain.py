"""Reward that rises while held-out pass@1 does not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groupwise.audit.held_out_gain import held_out_gains
from groupwise.audit.survey import audit_run
from groupwise.runs import RunLog
from groupwise.types import Verdict


def steps(records: Any, rewards: list[float], stage: str = "rl", start: int = 1) -> list[Any]:
    return [records.step(start + index, stage, reward) for index, reward in enumerate(rewards)]


RISING = [0.1 + 0.02 * index for index in range(16)]
FLAT = [0.3 + 0.01 * (-1) ** index for index in range(16)]


@pytest.mark.parametrize(
    ("rewards", "after", "is_suspicious"),
    [
        (RISING, (0.5, 0.4, 0.6), True),
        (RISING, (0.8, 0.7, 0.9), False),
        (RISING, (0.2, 0.1, 0.3), True),
        (FLAT, (0.5, 0.4, 0.6), False),
    ],
)
def test_suspicion(records: Any, rewards: list[float], after: tuple[float, float, float], is_suspicious: bool) -> None:
    evals = [records.eval(0, "rl", 0.5, 0.4, 0.6), records.eval(16, "rl", *after)]
    (gain,) = held_out_gains(steps(records, rewards), evals)
    assert gain.is_suspicious is is_suspicious


def test_hand_worked_numbers(records: Any) -> None:
    evals = [records.eval(0, "rl", 0.5, 0.4, 0.62), records.eval(8, "rl", 0.7, 0.61, 0.8)]
    (gain,) = held_out_gains(steps(records, [0.0, 0.2, 0.3, 0.3, 0.4, 0.5, 0.5, 0.9]), evals)
    assert (gain.reward_first, gain.reward_last) == pytest.approx((0.1, 0.7))
    # Spreads of (0, 0.2) and (0.5, 0.9): variances 0.02 and 0.08, two steps each.
    half = 1.96 * ((0.02 + 0.08) / 2) ** 0.5
    assert (gain.reward_gain_low, gain.reward_gain_high) == pytest.approx((0.6 - half, 0.6 + half))
    assert gain.held_out_gain_low == pytest.approx(0.2 - (0.09**2 + 0.12**2) ** 0.5)
    assert gain.held_out_gain_high == pytest.approx(0.2 + (0.1**2 + 0.1**2) ** 0.5)


def test_each_stage_starts_where_the_one_before_ended(records: Any) -> None:
    evals = [records.eval(number, "any", share, 0.0, 1.0) for number, share in ((0, 0.1), (8, 0.4), (24, 0.9))]
    gains = held_out_gains([*steps(records, RISING[:8], "one"), *steps(records, RISING, "two", 9)], evals)
    assert [(gain.stage, gain.held_out_first, gain.held_out_last) for gain in gains] == [
        ("one", 0.1, 0.4),
        ("two", 0.4, 0.9),
    ]


def test_too_little_to_say(records: Any) -> None:
    evals = [records.eval(0, "rl", 0.5, 0.4, 0.6), records.eval(16, "rl", 0.5, 0.4, 0.6)]
    assert held_out_gains(steps(records, RISING[:7]), evals) == ()
    assert held_out_gains(steps(records, RISING), evals[:1]) == ()
    assert held_out_gains(steps(records, [float("nan")] * 16), evals) == ()
    assert held_out_gains([], []) == ()


def test_it_is_part_of_the_audit(make_run: Callable[..., Path], records: Any) -> None:
    run_dir = make_run({1: [("p", "?", [("\\boxed{7}", Verdict.CORRECT)])]})
    log = RunLog(run_dir)
    for record in steps(records, RISING):
        log.write_step(record)
    for step in (0, 16):
        log.write_eval(records.eval(step, "rl", 0.5, 0.4, 0.6), [])
    assert [gain.is_suspicious for gain in audit_run(run_dir).held_out_gains] == [True]
