from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from groupwise.algo.selection import covariances, drawn_between, largest

values = st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=30).map(torch.tensor)


@given(values=values, share=st.floats(0.01, 1))
def test_the_largest_are_a_share_of_all_and_none_that_is_left_out_is_larger(values: torch.Tensor, share: float) -> None:
    chosen = largest(values, share)
    assert chosen.sum() == max(round(share * len(values)), 1)
    if not chosen.all():
        assert values[chosen].min() >= values[~chosen].max()


def test_of_equal_values_the_first_are_chosen() -> None:
    assert largest(torch.tensor([1.0, 2.0, 1.0, 1.0]), 0.5).tolist() == [True, True, False, False]


def test_covariances_by_hand() -> None:
    """Logprobs −1 −2 −3 and advantages 1 0 −4: means −2 and −1. Their mean is the covariance, 5/3."""
    found = covariances(torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([1.0, 0.0, -4.0]))
    assert found.tolist() == [2.0, 0.0, 3.0]


@given(values=values, share=st.floats(0.01, 0.99), low=st.floats(-5, 5), width=st.floats(0, 5), seed=st.integers(0, 9))
def test_what_is_drawn_is_inside_and_no_more_than_the_share(
    values: torch.Tensor, share: float, low: float, width: float, seed: int
) -> None:
    chosen = drawn_between(values, low, low + width, share, seed)
    is_inside = (values >= low) & (values <= low + width)
    assert not (chosen & ~is_inside).any()
    assert chosen.sum() == min(max(round(share * len(values)), 1), int(is_inside.sum()))
    assert torch.equal(chosen, drawn_between(values, low, low + width, share, seed))


def test_each_token_inside_is_drawn_equally_often() -> None:
    values = torch.tensor([0.0, 1.0, 1.5, 2.0, 9.0])
    counts = sum(drawn_between(values, 1.0, 2.0, 0.2, seed).long() for seed in range(600))
    assert isinstance(counts, torch.Tensor)
    assert counts[[0, 4]].tolist() == [0, 0]
    assert counts[1:4].tolist() == pytest.approx([200, 200, 200], abs=50)
