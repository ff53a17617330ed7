"""Algebra has limits: an answer that would take it past the deadline is not the same."""

import time

from groupwise.rewards.math.equality import judge

SINES = "\\sin(x)+\\sin({a}+{b})-\\sin({a})\\cos({b})-\\cos({a})\\sin({b})"


def test_answers_too_large_for_algebra_are_not_the_same() -> None:
    assert judge("\\sin x", SINES.format(a="x", b="3x")).is_same
    started = time.process_time()
    large = judge("\\sin x", SINES.format(a="(x+20)^3", b="x(x+11)^3\\sin(x)"))
    assert (large.is_same, large.stage) == (False, "algebra")
    assert time.process_time() - started < 3.0
