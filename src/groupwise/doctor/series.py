"""Tests on a series of measurements: did it rise, does it last, did it jump. Pure functions.

A point is (step, value). Whatever raises an alarm needs several steps, so that noise does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

from groupwise.base.stats import Z_95, mean, std

Point = tuple[int, float]


def values_of(points: Sequence[Point]) -> list[float]:
    return [value for _, value in points]


def average(points: Sequence[Point]) -> float:
    return mean(values_of(points))


def middle(points: Sequence[Point]) -> float:
    """Return the median value, which a single outlier does not move."""
    return median(values_of(points))


def has_risen(points: Sequence[Point]) -> bool:
    """Return whether the second half is above the first: the 95 % interval of the difference excludes 0."""
    half = len(points) // 2
    if half < 2:
        return False
    first, last = values_of(points[:half]), values_of(points[half:])
    error = math.sqrt(std(first) ** 2 / len(first) + std(last) ** 2 / len(last))
    return mean(last) - mean(first) > Z_95 * error


def persistent(points: Sequence[Point], is_bad: Callable[[float], bool], need: int, within: int) -> list[Point]:
    """Return the bad points that are close together: at least `need` among some `within` points in a row."""
    bad = [index for index, (_, value) in enumerate(points) if is_bad(value)]
    kept: set[int] = set()
    for start in range(len(bad) - need + 1):
        if bad[start + need - 1] - bad[start] < within:
            kept.update(bad[start : start + need])
    return [points[index] for index in sorted(kept)]


def jumps(points: Sequence[Point], factor: float, floor: float, before: int, after: int) -> list[Point]:
    """Return where a series jumped and stayed: the median of `after` points is above `floor` and above `factor` times
    the largest of the `before` points ahead of them. A series that grows smoothly never does that."""
    found: list[Point] = []
    for index in range(before, len(points) - after + 1):
        level = middle(points[index : index + after])
        if level > floor and level > factor * max(values_of(points[index - before : index])):
            found += points[index : index + after]
    return sorted(set(found))


def spikes(points: Sequence[Point], factor: float, floor: float, before: int) -> list[Point]:
    """Return the points above `floor` and above `factor` times the median of the `before` points ahead of them."""
    return [
        points[index]
        for index in range(before, len(points))
        if points[index][1] > floor and points[index][1] > factor * middle(points[index - before : index])
    ]
