from __future__ import annotations

import math
from typing import Any

import pytest

from groupwise.config import OptimizerConfig
from groupwise.scoring.credit import falling
from groupwise.training.steering import current_beta, current_bonus, next_beta, next_bonus
from groupwise.training.training import Position
from groupwise.training.update import scheduled_rate
from tests.factories import tiny_stage


def rates(schedule: str, *, warmup: int, total: int, final: float = 0.0) -> list[float]:
    settings: dict[str, Any] = {"schedule": schedule, "warmup_steps": warmup, "final_share": final}
    config = OptimizerConfig(learning_rate=1.0, **settings)
    return [2 * scheduled_rate(config, step, total) for step in range(total)]


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


def coefficients(schedule: str) -> list[float]:
    stage = tiny_stage("grpo", kl={"coefficient": 0.8, "schedule": schedule, "schedule_steps": 4})
    return [current_beta(stage, Position(stage_step=step)) for step in range(6)]


def seek(beta: float, kl: float, schedule_steps: int = 10) -> float:
    settings = {"coefficient": 0.1, "schedule": "target", "target": 0.05, "schedule_steps": schedule_steps}
    found = next_beta(tiny_stage("grpo", kl=settings), beta, kl)
    assert found is not None
    return found


def test_kl_warmup_rises_to_the_coefficient_and_stays() -> None:
    assert coefficients("warmup") == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])


def test_kl_anneal_falls_to_zero_and_stays() -> None:
    assert coefficients("anneal") == pytest.approx([0.8, 0.6, 0.4, 0.2, 0.0, 0.0])


@pytest.mark.parametrize("schedule", ["constant", "target"])
def test_kl_constant(schedule: str) -> None:
    assert set(coefficients(schedule)) == {0.8}


def test_target_raises_the_coefficient_when_the_kl_is_too_large_and_lowers_it_when_too_small() -> None:
    assert seek(0.1, 0.2) > 0.1
    assert seek(0.1, 0.01) < 0.1
    assert seek(0.1, 0.05) == 0.1


def test_target_is_clipped_and_grows_e_fold_in_schedule_steps() -> None:
    coefficient = 0.1
    for _ in range(10):
        coefficient = seek(coefficient, 100.0)
    assert coefficient == pytest.approx(0.1 * math.e)
    for _ in range(10):
        coefficient = seek(coefficient, -100.0)
    assert coefficient == pytest.approx(0.1)
    assert seek(0.1, math.inf) == pytest.approx(0.1 * math.exp(0.1))


def test_target_is_proportional_near_the_target() -> None:
    """kl 10 % above the target: half of the clip of 20 %."""
    assert seek(1.0, 0.055, schedule_steps=1) == pytest.approx(math.exp(0.5))


def test_falling() -> None:
    assert [falling(step, 4) for step in range(6)] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert falling(1000, 0) == 1.0


def test_a_fixed_bonus_stays() -> None:
    stage = tiny_stage("grpo", entropy={"bonus": 0.01})
    assert current_bonus(stage, Position(stage_step=7)) == 0.01
    assert next_bonus(stage, 0.01, 0.5) is None


def test_a_steered_bonus_grows_below_the_target_and_shrinks_above() -> None:
    stage = tiny_stage("grpo", entropy={"bonus": 0.01, "target": 0.4, "target_steps": 5})
    assert next_bonus(stage, 0.01, 0.4) == 0.01
    assert next_bonus(stage, 0.01, 0.38) == pytest.approx(0.01 * math.exp(0.05 / 0.2 / 5))
    assert next_bonus(stage, 0.01, 0.0) == pytest.approx(0.01 * math.exp(1 / 5))
    assert next_bonus(stage, 0.01, 4.0) == pytest.approx(0.01 * math.exp(-1 / 5))
    # The position remembers. A step without an update says nothing of the entropy.
    assert current_bonus(stage, Position(entropy_bonus=0.03)) == 0.03
    assert next_bonus(stage, 0.03, None) == 0.03
