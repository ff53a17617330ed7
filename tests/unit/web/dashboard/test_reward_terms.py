"""The terms of a reward add up to it, and are those that the trainer used."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.config import RewardConfig
from groupwise.scoring.credit import shape_parts
from groupwise.types import Finish, Rollout, Score, Verdict
from groupwise.web.dashboard.reward_terms import reward_terms

LIMIT = 100
shares = st.floats(0, 1)
configs = st.builds(
    RewardConfig,
    part_weights=st.dictionaries(st.sampled_from(["correct", "format"]), st.floats(-2, 2)),
    format_anneal_steps=st.sampled_from([0, 10]),
    overlong_buffer_share=st.sampled_from([0.0, 0.2]),
    length_cost=st.sampled_from([0.0, 0.3]),
    format_tags=st.sampled_from([(), ("think", "answer")]),
    process_weight=st.sampled_from([0.0, 0.25]),
    max_reward=st.sampled_from([math.inf, 0.5]),
)
TEXT = "<think>so</think><answer>7</answer>"


def score_of(verdict: str = "correct", **parts: float) -> Score:
    return Score(sum(parts.values()), Verdict(verdict), parts)


@given(configs, shares, shares, st.none() | shares, st.integers(0, 12), st.integers(1, LIMIT), st.booleans())
def test_the_terms_are_those_of_the_trainer(
    config: RewardConfig, correct: float, bonus: float, process: float | None, step: int, size: int, has_tags: bool
) -> None:
    score = Score(correct + bonus, Verdict.CORRECT, {"correct": correct, "format": bonus}, process=process)
    rollout = Rollout((1,) * size, (0.0,) * size, TEXT if has_tags else "7", Finish.STOP, 0)
    theirs = shape_parts(rollout, score, config, step, LIMIT)
    reward = sum(theirs.values())
    scale = 1.0 if config.format_anneal_steps == 0 else max(1 - step / config.format_anneal_steps, 0.0)
    stage = {"reward": dataclasses.asdict(config), "sampling": {"max_new_tokens": LIMIT}}
    ours = reward_terms(reward, score, size, stage, scale)
    assert math.fsum(term.amount for term in ours) == pytest.approx(reward, abs=1e-8)
    assert "other terms" not in [term.name for term in ours]
    for term in ours:
        if term.value is not None:
            assert term.amount == term.value * term.factor
        if term.name in score.parts:
            assert term.amount == pytest.approx(theirs[term.name])


def test_an_annealed_format_part_counts_less() -> None:
    stage = {"reward": {"format_parts": ["format"]}}
    terms = reward_terms(1.05, score_of(correct=1.0, format=0.1), 5, stage, 0.5)
    assert [(term.name, term.value, term.factor) for term in terms] == [("correct", 1.0, 1.0), ("format", 0.1, 0.5)]


def test_an_unknown_remainder_is_named() -> None:
    """A recipe that is lost: the parts are shown as they are, and the rest in one term."""
    *parts, rest = reward_terms(0.0, score_of("wrong", format=0.1), 5, {}, None)
    assert [(term.name, term.amount) for term in parts] == [("format", 0.1)]
    assert (rest.name, rest.value, rest.amount) == ("other terms", None, -0.1)


def test_clipping_is_a_term() -> None:
    stage = {"reward": {"max_reward": 1.0}}
    *_, last = reward_terms(1.0, score_of(correct=1.0, near=0.5), 5, stage, None)
    assert (last.name, last.amount) == ("clipping", -0.5)


def test_a_score_without_parts_is_its_own_term() -> None:
    (term,) = reward_terms(0.25, Score(0.25, Verdict.WRONG), 5, {}, None)
    assert (term.name, term.amount) == ("score", 0.25)


def test_what_was_not_scored_has_no_terms() -> None:
    assert reward_terms(0.0, score_of("error"), 5, {}, None) == []
