"""Answers near the gold one: the last stage of the math verifier answers soon and raises nothing."""

import time

from hypothesis import given
from hypothesis import strategies as st

from groupwise.rewards.math.equality import judge
from tests.fuzz import examples

MAX_SECONDS = 4
"""Below `verifier.seconds`, from which a wrong answer would be `timed_out`."""
GOLDS = (r"\pi", r"\sqrt2", r"x\sqrt2", r"\sin x", "e^{x}", r"\ln(x+2)", r"f(x)+\sqrt2", r"\frac{1+\sqrt5}{2}")
TINY = ("10^{-9}", "e^{-30}", "10^{-50}", "9^{-40}", r"\frac{1}{60!}", "(x/1000)^{9}")
FORMS = ("{g}+{t}({e})", "({g})(1+{t}({e}))", "{g}+({e})-({e})", r"({g})\frac{{{e}}}{{{e}}}", r"{g}+\sin({t}({e}))")

_ATOMS = st.sampled_from(["2", "x", "y", r"\pi", "e", r"\frac{1}{3}", "999", r"\sqrt2", "f(x)"])


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    one = st.sampled_from([r"\sin({})", "e^{{-({})}}", r"\ln({})", r"\sqrt[7]{{{}}}", "({})^{{17}}", r"\sqrt{{{}}}"])
    two = st.sampled_from(["({}+{})", "({}-{})", "({})({})", r"\frac{{{}}}{{{}}}", "({})^{{{}}}"])
    return st.builds(str.format, one, inner) | st.builds(str.format, two, inner, inner)


_EXPRESSIONS = st.recursive(_ATOMS, _larger, max_leaves=8)


@examples(400)
@given(st.sampled_from(GOLDS), st.sampled_from(FORMS), st.sampled_from(TINY), _EXPRESSIONS)
def test_answers_near_the_gold_one_are_judged_soon(gold: str, form: str, tiny: str, expression: str) -> None:
    started = time.process_time()
    judge(gold, form.format(g=gold, t=tiny, e=expression))
    assert time.process_time() - started < MAX_SECONDS
