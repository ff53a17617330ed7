"""Reward functions as a task's score: numbers, scores, weights, failures, names and versions."""

from __future__ import annotations

from typing import Any

import cloudpickle
import pytest

from groupwise.config import ConfigError, TaskConfig
from groupwise.scoring.scorer import score_completion
from groupwise.tasks import check_splits, make_task
from groupwise.tasks.functions import WithRewards, name_of, row_of, source_of, task_of
from groupwise.types import Problem, Score, Verdict

COUNTDOWN = {"num_train": 5, "num_held_out": 2, "style": "terse", "think": False}


def accuracy(completion: str, row: dict[str, Any]) -> float:
    return float(str(row["answer"]) in completion)


def brevity(completion: str, row: dict[str, Any]) -> float:
    return 1.0 if len(completion) < 5 else 0.0


def judged(completion: str, row: dict[str, Any]) -> Score:
    return Score(0.4, Verdict.CORRECT, {"a": 0.1, "b": 0.3}, "", "seen")


def broken(completion: str, row: dict[str, Any]) -> Any:
    return row["no such column"]


def textual(completion: str, row: dict[str, Any]) -> Any:
    return "good"


HERE = f"{__name__}:"


def scored(reward: Any, completion: str) -> Score:
    task = task_of(TaskConfig(name="countdown", options=COUNTDOWN, reward=reward))
    return score_completion(task, task.problems("train")[0], completion)


def problem_of(task: Any) -> Problem:
    problem: Problem = task.problems("train")[0]
    return problem


def test_a_number_of_1_or_more_is_correct() -> None:
    answer = problem_of(make_task("countdown", COUNTDOWN)).answer
    right, wrong = scored(f"{HERE}accuracy", f"it is {answer}"), scored(f"{HERE}accuracy", "no")
    assert (right.reward, right.verdict, dict(right.parts)) == (1.0, Verdict.CORRECT, {"accuracy": 1.0})
    assert (wrong.reward, wrong.verdict) == (0.0, Verdict.WRONG)
    assert right.verifier.startswith("accuracy/")


def test_several_are_weighted_parts_and_the_first_decides_what_is_correct() -> None:
    both = {f"{HERE}accuracy": 1.0, f"{HERE}brevity": 0.25}
    score = scored(both, "no")
    assert dict(score.parts) == {"accuracy": 0.0, "brevity": 0.25}
    assert (score.reward, score.verdict) == (0.25, Verdict.WRONG)
    first, second = score.verifier.split(" & ")
    assert first.startswith("accuracy/")
    assert second.startswith("brevity/")
    turned = scored(dict(reversed(both.items())), "no")
    assert turned.verdict is Verdict.CORRECT


def test_a_single_score_is_kept_as_it_is() -> None:
    score = scored(f"{HERE}judged", "x")
    assert (score.reward, score.verdict, dict(score.parts), score.detail) == (
        0.4,
        Verdict.CORRECT,
        {"a": 0.1, "b": 0.3},
        "seen",
    )


def test_the_tasks_own_verifier_can_be_one_of_them() -> None:
    task = make_task("countdown", COUNTDOWN)
    gold = task.demonstrate(problem_of(task))  # type: ignore[attr-defined]
    own = task.score(problem_of(task), gold)
    score = scored({"task": 2.0, f"{HERE}brevity": 1.0}, gold)
    assert dict(score.parts) == {"task": 2.0 * own.reward, "brevity": 0.0}
    assert score.verdict is Verdict.CORRECT
    assert score.verifier.startswith("countdown/")


@pytest.mark.parametrize("reward", ["broken", "textual"])
def test_a_function_that_fails_is_an_error_and_no_wrong_answer(reward: str) -> None:
    for wanted in (f"{HERE}{reward}", {f"{HERE}accuracy": 1.0, f"{HERE}{reward}": 1.0}):
        assert scored(wanted, "x").verdict is Verdict.ERROR


def test_all_else_is_the_tasks_own_also_in_another_process() -> None:
    task = task_of(TaskConfig(name="countdown", options=COUNTDOWN, reward=f"{HERE}brevity"))
    train, held_out = check_splits(task)
    assert (len(train), len(held_out)) == (5, 2)
    again = cloudpickle.loads(cloudpickle.dumps(task))
    assert isinstance(again, WithRewards)
    assert again.demonstrate(train[0]) == task.demonstrate(train[0])  # type: ignore[attr-defined]
    assert again.score(train[0], "a").reward == 1.0
    with pytest.raises(AttributeError):
        task.no_such_thing  # noqa: B018


def test_the_row_holds_every_column_and_needs_no_answer(tmp_path: Any) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "2 + 2?", "sum": 4, "tags": ["a"]}\n{"prompt": "3 + 3?", "sum": 6, "tags": []}\n')
    options = {"train": str(file), "held_out_share": 0.5}
    task = task_of(TaskConfig(name="jsonl", options=options, reward=f"{HERE}brevity"))
    rows = [row_of(problem) for split in ("train", "held_out") for problem in task.problems(split)]  # type: ignore[arg-type]
    assert sorted(rows, key=lambda row: row["sum"]) == [
        {"prompt": "2 + 2?", "sum": 4, "tags": ["a"]},
        {"prompt": "3 + 3?", "sum": 6, "tags": []},
    ]
    with pytest.raises(ConfigError, match="no key 'answer'"):
        make_task("jsonl", options).problems("train")


def test_a_prompt_may_be_a_conversation(tmp_path: Any) -> None:
    file = tmp_path / "rows.jsonl"
    messages = '[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]'
    file.write_text(f'{{"prompt": {messages}, "answer": "1"}}\n')
    (problem,) = make_task("jsonl", {"train": str(file), "held_out": str(file)}).problems("train")
    assert [(message.role, message.content) for message in problem.messages] == [
        ("system", "Be brief."),
        ("user", "Hi"),
    ]
    file.write_text('{"prompt": [{"role": "user"}], "answer": "1"}\n')
    with pytest.raises(ConfigError, match=r"row 1: 'prompt' is a list, but not one of messages"):
        make_task("jsonl", {"train": str(file), "held_out": str(file)}).problems("train")


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("concise", "expected module:function"),
        ("no_such_module:f", "cannot import 'no_such_module'"),
        (f"{HERE}no_such_function", "has no 'no_such_function'"),
        (f"{HERE}COUNTDOWN", "not a function"),
        ("local:mine", r"pass it again, as in groupwise.resume\(run, reward=mine\)"),
        ({"task": 1.0, "tests.unit.tasks.test_functions:task": 1.0}, "has no 'task'"),
    ],
)
def test_what_cannot_be_a_reward_function_is_refused_with_the_fix(reward: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"task.reward = .*{message}"):
        task_of(TaskConfig(name="countdown", options=COUNTDOWN, reward=reward))


def test_what_can_be_imported_is_named_by_its_module_and_all_else_is_local() -> None:
    def inner(completion: str, row: dict[str, Any]) -> float:
        return 0.0

    assert name_of(accuracy) == f"{HERE}accuracy"
    assert name_of(inner) == "local:inner"
    assert name_of(lambda completion, row: 0.0) == "local:lambda"
    assert task_of(TaskConfig(name="countdown", options=COUNTDOWN, reward="local:inner"), {"inner": inner})


def test_the_version_follows_the_source() -> None:
    def one(completion: str, row: dict[str, Any]) -> float:
        return 1.0

    def other(completion: str, row: dict[str, Any]) -> float:
        return 2.0

    made = [
        task_of(TaskConfig(name="countdown", options=COUNTDOWN, reward="local:f"), {"f": function}).verifier
        for function in (one, one, other)
    ]
    assert made[0] == made[1] != made[2]
    assert "return 1.0" in source_of(one)
    assert source_of(eval("lambda completion, row: 3.0")).startswith("# no source")
