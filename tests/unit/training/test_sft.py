from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from groupwise.config import ConfigError
from groupwise.runs.reader import Run
from groupwise.runs.writer import RunLog
from groupwise.training.sft import from_file, from_rollouts, from_task, refuse_held_out
from groupwise.types import (
    Demonstration,
    Finish,
    Group,
    Message,
    Problem,
    Score,
    ScoredGroup,
    Verdict,
)
from tests.factories import ERROR, RIGHT, WRONG, make_problem, make_rollout, make_score, make_scored


def problem(name: str) -> Problem:
    return make_problem(name, name)


def group(name: str, *rows: tuple[str, int, float, Verdict]) -> ScoredGroup:
    """Rows: text, tokens, reward, verdict."""
    pairs = [
        (make_rollout(text, token_ids=(1,) * count), make_score(verdict, reward))
        for text, count, reward, verdict in rows
    ]
    return make_scored(name, pairs, question=name)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    log = RunLog(tmp_path)
    log.write_rollouts(
        1,
        "rl",
        [
            group("p1", ("long", 9, 1.0, RIGHT), ("short", 3, 1.0, RIGHT), ("also short", 3, 1.0, RIGHT)),
            group("p2", ("wrong but praised", 1, 5.0, WRONG), ("failed", 1, 9.0, ERROR)),
            group("p3", ("plain", 2, 1.0, RIGHT), ("with format", 7, 1.1, RIGHT)),
        ],
    )
    log.write_rollouts(2, "rl", [group("p1", ("shorter", 2, 1.0, RIGHT)), group("p3", ("late", 7, 1.1, RIGHT))])
    log.write_rollouts(12, "rl", [group("p4", ("future", 1, 1.0, RIGHT))])
    return Run(tmp_path)


def test_the_best_correct_completion_of_each_problem(run: Run) -> None:
    """Highest reward, then shortest, then earliest; a wrong one never, whatever its reward."""
    texts = {d.problem.id: d.completion for d in from_rollouts(run, up_to_step=1)}
    assert texts == {"p1": "short", "p3": "with format"}
    texts = {d.problem.id: d.completion for d in from_rollouts(run, up_to_step=2)}
    assert texts == {"p1": "shorter", "p3": "with format"}


def test_rollouts_after_the_step_are_not_looked_at(run: Run) -> None:
    assert {d.problem.id for d in from_rollouts(run, up_to_step=11)} == {"p1", "p3"}
    assert {d.problem.id for d in from_rollouts(run, up_to_step=12)} == {"p1", "p3", "p4"}
    assert from_rollouts(run, up_to_step=0) == []


def test_what_is_imitated_is_what_was_sampled_and_not_what_was_cut_off(tmp_path: Path) -> None:
    cut = group("p1", ("cut off", 2, 1.0, RIGHT), ("whole", 5, 1.0, RIGHT))
    rollouts = (dataclasses.replace(cut.group.rollouts[0], finish=Finish.LENGTH), cut.group.rollouts[1])
    RunLog(tmp_path).write_rollouts(1, "rl", [dataclasses.replace(cut, group=Group(cut.group.prompt, rollouts))])
    (demonstration,) = from_rollouts(Run(tmp_path), up_to_step=1)
    assert demonstration.completion == "whole"
    assert demonstration.token_ids == (1,) * 5


def test_the_problem_comes_back_whole(run: Run) -> None:
    assert from_rollouts(run, up_to_step=1)[0].problem == problem("p1")


def write(path: Path, *rows: Any) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_file_with_prompts_and_messages(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Think."}, {"role": "user", "content": "2 + 2?"}]
    path = write(
        tmp_path / "data.jsonl",
        {"prompt": "1 + 1?", "completion": "2"},
        {"messages": messages, "completion": "4"},
        {"prompt": "1 + 1?", "completion": "2"},
        {"prompt": "1 + 1?", "completion": "two"},
    )
    first, second, third = from_file(path)
    assert first.problem.messages == (Message("user", "1 + 1?"),)
    assert first.completion == "2"
    assert second.problem.messages == (Message("system", "Think."), Message("user", "2 + 2?"))
    # The same prompt is the same problem; a repeated row counts once.
    assert third.problem.id == first.problem.id != second.problem.id
    assert third.completion == "two"


@pytest.mark.parametrize(
    "bad",
    [
        {"prompt": "1 + 1?"},
        {"prompt": "1 + 1?", "completion": 2},
        {"prompt": "1 + 1?", "completion": ""},
        {"completion": "2"},
        {"prompt": "", "completion": "2"},
        {"prompt": 5, "completion": "2"},
        {"messages": [], "completion": "2"},
        {"messages": "1 + 1?", "completion": "2"},
        {"messages": [{"role": "user"}], "completion": "2"},
        {"messages": ["hello"], "completion": "2"},
        ["not", "an", "object"],
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, bad: Any) -> None:
    path = write(tmp_path / "data.jsonl", {"prompt": "ok", "completion": "ok"}, bad)
    with pytest.raises(ConfigError, match=r"data\.jsonl.*row 2"):
        from_file(path)


def test_a_file_that_is_not_there_or_not_json(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        from_file(str(tmp_path / "none.jsonl"))
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"prompt": "a", "completion": "b"}\n{"prompt": \n')
    with pytest.raises(ConfigError, match=r"broken\.jsonl.*row 2"):
        from_file(str(broken))


def test_a_task_without_a_solver_is_refused() -> None:
    class Unsolved:
        verifier = "none/1"

        def problems(self, split: str) -> list[Problem]:
            return []

        def score(self, problem: Problem, completion: str) -> Score:
            return Score(0.0, WRONG)

    class Solved(Unsolved):
        def demonstrate(self, problem: Problem) -> str:
            return f"answer to {problem.id}"

    with pytest.raises(ConfigError, match="Unsolved cannot solve its own problems"):
        from_task(Unsolved(), [problem("p1")])
    assert from_task(Solved(), [problem("p1")]) == [Demonstration(problem("p1"), "answer to p1")]


def test_demonstrations_of_held_out_problems_are_refused() -> None:
    """Told by the question: the ids of a file's rows are not the task's."""
    demonstrations = [Demonstration(Problem("other", (Message("user", "p1"),), ""), "2")]
    refuse_held_out(demonstrations, [problem("p2")], "data.jsonl")
    for text in ("p1", " p1 "):
        demonstrations = [Demonstration(Problem("other", (Message("user", text),), ""), "2")]
        with pytest.raises(ConfigError, match=r"data\.jsonl has a demonstration of the held-out problem p1"):
            refuse_held_out(demonstrations, [problem("p1")], "data.jsonl")
