from __future__ import annotations

import math

import pytest

from groupwise.algo.schedules import falling, kl_coefficient, learning_rate, seek_target


def rates(schedule: str, *, warmup: int, total: int, final: float = 0.0) -> list[float]:
    return [
        learning_rate(step, peak=2.0, schedule=schedule, warmup_steps=warmup, total_steps=total, final_share=final)
        for step in range(total)
    ]


def test_constant_after_warmup() -> None:
    assert rates("constant", warmup=4, total=6) == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


def test_linear_ends_at_the_final_share() -> None:
    assert rates("linear", warmup=0, total=5, final=0.2) == pytest.approx([2.0, 1.6, 1.2, 0.8, 0.4])


def test_linear_after_warmup_starts_from_the_peak() -> None:
    assert rates("linear", warmup=2, total=5) == pytest.approx([1.0, 2.0, 2.0, 1.0, 0.0])


def test_cosine_by_hand() -> None:
    """2 · (0.5 + 0.5 · (1 + cos(π p)) / 2) at p = 0, 1/4, 1/2, 3/4, 1."""
    half = math.sqrt(0.5)
    expected = [2.0, 1 + (1 + half) / 2, 1.5, 1 + (1 - half) / 2, 1.0]
    assert rates("cosine", warmup=0, total=5, final=0.5) == pytest.approx(expected)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize(("warmup", "total"), [(0, 1), (1, 1), (3, 3), (5, 3), (2, 3)])
def test_short_stages_never_divide_by_zero_nor_start_at_zero(schedule: str, warmup: int, total: int) -> None:
    values = rates(schedule, warmup=warmup, total=total)
    assert all(0 <= value <= 2.0 for value in values)
    assert values[0] > 0


def test_kl_warmup_rises_to_the_coefficient_and_stays() -> None:
    values = [kl_coefficient(step, coefficient=0.8, schedule="warmup", schedule_steps=4) for step in range(6)]
    assert values == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])


def test_kl_anneal_falls_to_zero_and_stays() -> None:
    values = [kl_coefficient(step, coefficient=0.8, schedule="anneal", schedule_steps=4) for step in range(6)]
    assert values == pytest.approx([0.8, 0.6, 0.4, 0.2, 0.0, 0.0])


@pytest.mark.parametrize("schedule", ["constant", "target"])
def test_kl_constant(schedule: str) -> None:
    assert {kl_coefficient(step, coefficient=0.8, schedule=schedule, schedule_steps=4) for step in range(6)} == {0.8}


def test_target_raises_the_coefficient_when_the_kl_is_too_large_and_lowers_it_when_too_small() -> None:
    assert seek_target(0.1, 0.2, target=0.05, schedule_steps=10) > 0.1
    assert seek_target(0.1, 0.01, target=0.05, schedule_steps=10) < 0.1
    assert seek_target(0.1, 0.05, target=0.05, schedule_steps=10) == 0.1


def test_target_is_clipped_and_grows_e_fold_in_schedule_steps() -> None:
    coefficient = 0.1
    for _ in range(10):
        coefficient = seek_target(coefficient, 100.0, target=0.05, schedule_steps=10)
    assert coefficient == pytest.approx(0.1 * math.e)
    for _ in range(10):
        coefficient = seek_target(coefficient, -100.0, target=0.05, schedule_steps=10)
    assert coefficient == pytest.approx(0.1)
    assert seek_target(0.1, math.inf, target=0.05, schedule_steps=10) == pytest.approx(0.1 * math.exp(0.1))


def test_target_is_proportional_near_the_target() -> None:
    """kl 10 % above the target: half of the clip of 20 %."""
    assert seek_target(1.0, 0.055, target=0.05, schedule_steps=1) == pytest.approx(math.exp(0.5))


def test_falling() -> None:
    assert [falling(step, 4) for step in range(6)] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert falling(1000, 0) == 1.0
