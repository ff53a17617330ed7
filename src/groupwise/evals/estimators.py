"""Exact estimators of pass@k and maj@k from n completions of a problem, as expectations over all subsets of size k.

Contract: counts in, a probability out. Only completions that could be judged are counted; where there are fewer than k
of them nothing can be said, and the caller leaves the problem out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Return the probability that at least one of k of these n completions is correct: 1 - C(n-c, k) / C(n, k).

    Chen et al. 2021 (arXiv:2107.03374), eq. 1: unbiased for k fresh completions. At k = n: whether any is correct.
    """
    _check(n, k)
    return float(1 - Fraction(math.comb(n - correct, k), math.comb(n, k)))


def majority_at_k(correct: int, wrong: Sequence[int], silent: int, k: int) -> float:
    """Return the probability that the most common answer among k of these completions is the right one.

    `correct` completions give the right answer, `wrong` has the number for each wrong answer, and `silent` ones give
    none and do not vote. Among t + 1 answers that are equally common, the right one wins with probability 1 / (t + 1).

    Exact, by counting subsets: for each number j of right votes the product over the wrong answers of
    Σ_{i<j} C(m, i) xⁱ + C(m, j) y xʲ, in which x counts the drawn and y the tied; then the coefficient of x^(k-j).
    """
    # The order of the wrong answers does not matter, and the same counts recur.
    return _majority_at_k(correct, tuple(sorted(wrong)), silent, k)


@lru_cache(maxsize=65536)
def _majority_at_k(correct: int, wrong: tuple[int, ...], silent: int, k: int) -> float:
    _check(correct + sum(wrong) + silent, k)
    total = Fraction(0)
    for votes in range(1, min(correct, k) + 1):
        # ways[(drawn, tied)]: number of subsets of the answers processed so far.
        ways = {(drawn, 0): math.comb(silent, drawn) for drawn in range(min(silent, k - votes) + 1)}
        for size in wrong:
            grown: dict[tuple[int, int], int] = {}
            for (drawn, tied), count in ways.items():
                for more in range(min(size, votes, k - votes - drawn) + 1):
                    key = (drawn + more, tied + (more == votes))
                    grown[key] = grown.get(key, 0) + count * math.comb(size, more)
            ways = grown
        right = math.comb(correct, votes)
        for (drawn, tied), count in ways.items():
            if drawn == k - votes:
                total += Fraction(right * count, tied + 1)
    return float(total / math.comb(correct + sum(wrong) + silent, k))


def _check(n: int, k: int) -> None:
    if not 1 <= k <= n:
        raise ValueError(f"k = {k}: must be from 1 to n = {n}")
