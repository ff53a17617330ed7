from __future__ import annotations

from typing import Any

import pytest

from groupwise.config import RewardConfig
from groupwise.scoring.credit import is_truncated, shape_group, shape_parts
from groupwise.training.metrics import rollout_metrics
from groupwise.types import Finish, Group, Message, Problem, Prompt, Rollout, Score, Verdict

PROBLEM = Problem("p1", (Message("user", "1 + 1 = ?"),), "2")


def rollout(text: str = "2", num_tokens: int = 1, finish: Finish = Finish.STOP) -> Rollout:
    return Rollout((1,) * num_tokens, (-1.0,) * num_tokens, text, finish, 0)


def group(*rollouts: Rollout) -> Group:
    return Group(Prompt(PROBLEM, (1,)), rollouts)


def signal(*scores: Score, lengths: tuple[int, ...] = (), **config: Any) -> bool:
    rollouts = [rollout(num_tokens=length) for length in lengths or (1,) * len(scores)]
    return shape_group(group(*rollouts), scores, RewardConfig(**config), 0, 4).has_signal


RIGHT, WRONG, ERROR = Score(1.0, Verdict.CORRECT), Score(0.0, Verdict.WRONG), Score(0.0, Verdict.ERROR)


def test_signal_is_asked_of_the_rewards() -> None:
    assert signal(RIGHT, WRONG)
    assert not signal(RIGHT, RIGHT)
    assert not signal(WRONG, WRONG)
    # Different verdicts with the same reward teach nothing; the same verdict with different rewards does.
    assert not signal(WRONG, Score(0.0, Verdict.UNPARSED))
    assert signal(RIGHT, Score(1.1, Verdict.CORRECT))
    # 0.1 three times: their mean is not 0.1 in floating point, and the advantages are not exactly 0 ...
    assert not signal(*[Score(0.1, Verdict.WRONG)] * 3)
    # ... and a difference in the last bit is a difference.
    assert signal(Score(0.3, Verdict.WRONG), Score(0.1 + 0.2, Verdict.WRONG))


def test_errors_give_no_signal() -> None:
    assert not signal(RIGHT, ERROR)
    assert not signal(RIGHT, RIGHT, ERROR)
    assert not signal(ERROR, ERROR)
    assert signal(RIGHT, WRONG, ERROR)


def test_signal_is_asked_after_shaping() -> None:
    assert signal(RIGHT, RIGHT, lengths=(1, 4), overlong_buffer_share=0.5)
    formatted = [Score(0.1, Verdict.WRONG, {"answer": 0.0, "format": 0.1}), Score(0.0, Verdict.WRONG, {"answer": 0.0})]
    assert signal(*formatted)
    assert not signal(*formatted, part_weights={"format": 0.0})


def test_a_group_of_one_has_no_signal() -> None:
    assert not signal(RIGHT)


def test_parts_are_weighed_annealed_and_penalized() -> None:
    """answer 1 × 3; format 0.2 × 2 × (1 − 1/4); other as it is; 7 of 8 tokens, buffer 4: 3/4 of the penalty."""
    config = RewardConfig(
        part_weights={"answer": 3.0, "format": 2.0},
        format_anneal_steps=4,
        overlong_buffer_share=0.5,
        overlong_penalty=2.0,
    )
    score = Score(1.5, Verdict.CORRECT, {"answer": 1.0, "format": 0.2, "other": 0.3})
    shaped = shape_parts(rollout(num_tokens=7), score, config, stage_step=1, limit=8)
    assert shaped == pytest.approx({"answer": 3.0, "format": 0.3, "other": 0.3, "length_penalty": -1.5})
    shaped_group = shape_group(group(rollout(num_tokens=7)), [score], config, 1, 8)
    assert shaped_group.rewards == pytest.approx((2.1,))
    assert shaped_group.scores == (score,)


def test_a_score_without_parts_is_its_reward() -> None:
    assert shape_parts(rollout(), RIGHT, RewardConfig(part_weights={"reward": 2.0}), 0, 8) == {"reward": 2.0}


def test_pass_rate_leaves_errors_out() -> None:
    def rate(*scores: Score) -> float | None:
        return shape_group(group(*[rollout()] * len(scores)), scores, RewardConfig(), 0, 4).pass_rate

    assert rate(RIGHT, WRONG, ERROR, RIGHT) == pytest.approx(2 / 3)
    assert rate(Score(5.0, Verdict.UNPARSED), WRONG) == 0.0
    assert rate(ERROR, ERROR) is None


def test_a_step_of_errors_with_parts_has_metrics() -> None:
    failed = Score(0.0, Verdict.ERROR, {"answer": 0.0})
    scored = shape_group(group(rollout(), rollout()), [failed, failed], RewardConfig(), 0, 4)
    assert rollout_metrics([scored], [], RewardConfig(), 0)["score/error_share"] == 1.0


def test_groups_are_counted_by_what_they_can_teach() -> None:
    boxed = Score(0.1, Verdict.WRONG, {"box": 0.1})
    pairs = [(WRONG, WRONG), (RIGHT, RIGHT), (boxed, WRONG), (boxed, boxed), (RIGHT, boxed), (ERROR, boxed)]
    groups = [shape_group(group(rollout(), rollout()), scores, RewardConfig(), 0, 4) for scores in pairs]
    metrics = rollout_metrics(groups[:4], groups[4:], RewardConfig(), 0)
    names = ("count", "dead_all_wrong", "dead_all_correct", "signal_all_wrong")
    assert [metrics[f"groups/{name}"] for name in names] == [6, 3, 1, 1]
    assert metrics["groups/signal_share"] == pytest.approx(2 / 6)


def test_time_outs_are_counted_apart_and_judge_nothing() -> None:
    late = Score(0.0, Verdict.TIMED_OUT)
    scored = shape_group(group(*[rollout()] * 4), [late, ERROR, RIGHT, RIGHT], RewardConfig(), 0, 4)
    metrics = rollout_metrics([scored], [], RewardConfig(), 0)
    assert (metrics["score/timed_out_share"], metrics["score/error_share"]) == (0.25, 0.25)
    assert metrics["score/pass_at_1"] == metrics["reward/mean"] == 1.0
    assert not scored.has_signal
    assert scored.pass_rate == 1.0


def reward(score: Score, text: str = "", num_tokens: int = 1, stage_step: int = 0, **config: Any) -> float:
    """Shape with max_new_tokens = 10, and check that the terms add up to the reward."""
    made = rollout(text, num_tokens)
    terms = shape_parts(made, score, RewardConfig(**config), stage_step, 10)
    shaped = shape_group(group(made), [score], RewardConfig(**config), stage_step, 10)
    assert shaped.rewards == (sum(terms.values()),)
    return shaped.rewards[0]


def test_the_outcome_is_blended_with_the_process() -> None:
    def score(outcome: float, process: float | None) -> Score:
        return Score(outcome, Verdict.CORRECT if outcome else Verdict.WRONG, {"answer": outcome}, process=process)

    assert reward(score(1.0, 0.5), process_weight=0.3) == pytest.approx(0.7 * 1.0 + 0.3 * 0.5)
    assert reward(score(0.0, 1.0), process_weight=0.3) == pytest.approx(0.3)
    assert reward(score(1.0, 1.0), process_weight=0.3) == pytest.approx(1.0)
    # Nothing to judge: the outcome stands, and is not diluted.
    assert reward(score(1.0, None), process_weight=0.3) == 1.0
    assert reward(score(1.0, 0.0)) == 1.0
    assert reward(Score(0.5, Verdict.WRONG, process=1.0), process_weight=0.5) == pytest.approx(0.75)


def test_the_format_bonus_is_for_exactly_those_elements_and_is_annealed() -> None:
    good, bad = "<think>a</think> <answer>b</answer>", "well: <think>a</think><answer>b</answer>"
    tags = {"format_tags": ("think", "answer"), "format_bonus": 0.2}
    assert reward(WRONG, good, **tags) == pytest.approx(0.2)
    assert reward(WRONG, bad, **tags) == 0.0
    assert reward(WRONG, good, stage_step=5, format_anneal_steps=10, **tags) == pytest.approx(0.1)
    assert reward(WRONG, good) == 0.0


def test_length_costs_the_correct_ones_in_proportion() -> None:
    assert reward(RIGHT, num_tokens=5, length_cost=0.2) == pytest.approx(0.9)
    assert reward(RIGHT, num_tokens=10, length_cost=0.2) == pytest.approx(0.8)
    assert reward(WRONG, num_tokens=10, length_cost=0.2) == 0.0


def test_clipping_comes_last_and_is_a_term_of_its_own() -> None:
    score = Score(3.0, Verdict.CORRECT, {"answer": 3.0})
    assert reward(score, max_reward=1.0) == 1.0
    assert reward(score, num_tokens=10, length_cost=5.0, min_reward=-0.5) == -0.5
    assert reward(score, num_tokens=10, length_cost=2.5, min_reward=0.0, max_reward=1.0) == 0.5
    terms = shape_parts(rollout(), score, RewardConfig(max_reward=1.0), 0, 10)
    assert terms == {"answer": 3.0, "clip": -2.0}
    has_own_clip = Score(3.0, Verdict.CORRECT, {"clip": 3.0})
    assert reward(has_own_clip, max_reward=1.0) == 1.0


def test_truncated_is_a_finish_not_a_length() -> None:
    assert is_truncated(rollout(finish=Finish.LENGTH))
    assert not is_truncated(rollout(num_tokens=1000))
