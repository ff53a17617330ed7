from __future__ import annotations

import math
from typing import Any

import pytest

from groupwise.config import RewardConfig
from groupwise.scoring import is_truncated, pass_rate, score_completion, score_group, shape_group, shape_parts
from groupwise.stepmetrics import rollout_metrics
from groupwise.types import Finish, Group, Message, Problem, Prompt, Rollout, Score, Verdict

PROBLEM = Problem("p1", (Message("user", "1 + 1 = ?"),), "2")


class FakeTask:
    """Answers with whatever it was told to, or raises it."""

    verifier = "fake/3"

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.seen: list[str] = []

    def problems(self, split: str) -> list[Problem]:
        return [PROBLEM]

    def score(self, problem: Problem, completion: str) -> Score:
        self.seen.append(completion)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer(completion) if callable(self.answer) else self.answer


def rollout(text: str = "2", num_tokens: int = 1, finish: Finish = Finish.STOP) -> Rollout:
    return Rollout((1,) * num_tokens, (-1.0,) * num_tokens, text, finish, 0)


def group(*rollouts: Rollout) -> Group:
    return Group(Prompt(PROBLEM, (1,)), rollouts)


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        (ValueError("no such thing"), "ValueError: no such thing"),
        (ZeroDivisionError(), "ZeroDivisionError"),
        (RecursionError("deep"), "RecursionError: deep"),
        (TimeoutError("30 s"), "TimeoutError: 30 s"),
        (None, "NoneType"),
        (1.0, "float"),
        ({"reward": 1.0}, "dict"),
        (Score(math.nan, Verdict.CORRECT), "reward = nan"),
        (Score(math.inf, Verdict.CORRECT), "reward = inf"),
        (Score(-math.inf, Verdict.WRONG), "reward = -inf"),
        (Score("1", Verdict.CORRECT), "reward = '1'"),  # type: ignore[arg-type]
        (Score(None, Verdict.CORRECT), "reward = None"),  # type: ignore[arg-type]
        (Score(1.0, Verdict.CORRECT, {"answer": math.nan}), "answer = nan"),
        (Score(1.0, Verdict.CORRECT, {"answer": 1.0, "format": "yes"}), "format = 'yes'"),  # type: ignore[dict-item]
    ],
)
def test_nonsense_is_an_error_and_never_a_wrong_answer(answer: Any, detail: str) -> None:
    score = score_completion(FakeTask(answer), PROBLEM, "2")
    assert score.verdict is Verdict.ERROR
    assert score.is_error
    assert (score.reward, dict(score.parts), score.verifier) == (0.0, {}, "fake/3")
    assert detail in score.detail


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Score(1.0, "correct"), id="verdict is a string"),  # type: ignore[arg-type]
        pytest.param(Score(1.0, None), id="verdict is None"),  # type: ignore[arg-type]
        pytest.param(Score(1.0, Verdict.CORRECT, None), id="parts is None"),  # type: ignore[arg-type]
        pytest.param(Score(1.0, Verdict.CORRECT, [1.0]), id="parts is a list"),  # type: ignore[arg-type]
        pytest.param(Score(math.nan, Verdict.CORRECT, {"reward": 1.0}), id="NaN reward hidden by a part of that name"),
        pytest.param(Score(10**400, Verdict.CORRECT), id="an integer beyond float"),
        pytest.param(Score(1.0, Verdict.CORRECT, {"answer": 1.0, "format": 0.1}), id="not the sum of its parts"),
    ],
)
def test_a_malformed_score_is_an_error(answer: Any) -> None:
    try:
        score = score_completion(FakeTask(answer), PROBLEM, "2")
    except (TypeError, OverflowError) as error:
        pytest.fail(f"a verifier's mistake ended the run: {error!r}")
    assert score.verdict is Verdict.ERROR


def test_an_interrupt_is_not_swallowed() -> None:
    with pytest.raises(KeyboardInterrupt):
        score_completion(FakeTask(KeyboardInterrupt()), PROBLEM, "2")


def test_a_score_passes_through_unchanged() -> None:
    score = Score(1.1, Verdict.CORRECT, {"answer": 1.0, "format": 0.1}, "fake/3", "2")
    assert score_completion(FakeTask(score), PROBLEM, "2") is score


def test_the_same_text_is_judged_once() -> None:
    task = FakeTask(lambda text: Score(float(text), Verdict.CORRECT))
    scores = score_group(task, group(*(rollout(text) for text in ("1", "2", "1", "1", "2"))))
    assert task.seen == ["1", "2"]
    assert [score.reward for score in scores] == [1.0, 2.0, 1.0, 1.0, 2.0]


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
        return pass_rate(shape_group(group(*[rollout()] * len(scores)), scores, RewardConfig(), 0, 4))

    assert rate(RIGHT, WRONG, ERROR, RIGHT) == pytest.approx(2 / 3)
    assert rate(Score(5.0, Verdict.UNPARSED), WRONG) == 0.0
    assert rate(ERROR, ERROR) is None


def test_a_step_of_errors_with_parts_has_metrics() -> None:
    failed = score_completion(FakeTask(Score(0.0, Verdict.ERROR, {"answer": 0.0})), PROBLEM, "2")
    scored = shape_group(group(rollout(), rollout()), [failed, failed], RewardConfig(), 0, 4)
    assert rollout_metrics([scored], [], RewardConfig(), 0)["score/error_share"] == 1.0


def test_truncated_is_a_finish_not_a_length() -> None:
    assert is_truncated(rollout(finish=Finish.LENGTH))
    assert not is_truncated(rollout(num_tokens=1000))
