from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from groupwise.base.stats import mean
from groupwise.doctor.series import has_risen, jumps, persistent, spikes


def numbered(values: list[float]) -> list[tuple[int, float]]:
    return list(enumerate(values, start=1))


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 4), st.integers(1, 8))
def test_persistent_is_what_every_window_says(bad: list[bool], need: int, within: int) -> None:
    points = numbered([float(is_bad) for is_bad in bad])
    expected: set[tuple[int, float]] = set()
    for start in range(len(points)):
        window = [point for point in points[start : start + within] if point[1]]
        if len(window) >= need:
            expected.update(window)
    assert persistent(points, lambda value: value > 0, need, within) == sorted(expected)


def test_a_rise_is_told_from_noise() -> None:
    noise = random.Random(0)
    flat = [has_risen(numbered([noise.gauss(0, 1) for _ in range(40)])) for _ in range(400)]
    rising = [has_risen(numbered([noise.gauss(index / 10, 1) for index in range(40)])) for _ in range(400)]
    # One side of a 95 % interval.
    assert mean(flat) < 0.06
    assert mean(rising) > 0.98
    assert not has_risen(numbered([1.0, 2.0]))


def test_growth_is_no_jump_and_one_wild_point_is_none() -> None:
    doubling_every_five = numbered([0.01 * 2 ** (index / 5) for index in range(60)])
    assert jumps(doubling_every_five, factor=5, floor=0.1, before=10, after=5) == []
    once = numbered([0.1] * 20 + [50.0] + [0.1] * 20)
    assert jumps(once, factor=5, floor=0.1, before=10, after=5) == []
    stays = numbered([0.1] * 20 + [2.0] * 20)
    assert jumps(stays, factor=5, floor=0.1, before=10, after=5)[-1][1] == 2.0
    assert jumps(stays, factor=5, floor=3.0, before=10, after=5) == []


def test_a_spike_is_measured_by_what_came_before() -> None:
    points = numbered([1.0] * 20 + [15.0] + [1.0] * 5)
    assert spikes(points, factor=10, floor=1.0, before=20) == [(21, 15.0)]
    assert spikes(points, factor=10, floor=20.0, before=20) == []
    assert spikes(points[15:], factor=10, floor=1.0, before=20) == []
