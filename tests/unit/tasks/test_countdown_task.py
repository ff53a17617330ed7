import json
import logging
import re
from fractions import Fraction
from itertools import permutations, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from groupwise.config.build import ConfigError
from groupwise.rewards.expression import score_countdown
from groupwise.tasks import check_splits, make_task
from groupwise.tasks.countdown import Countdown, solve
from groupwise.types import Verdict


def _reachable(nums: list[int]) -> set[Fraction]:
    """Brute force, another way than the solver's: every order of the numbers, all operators, both shapes."""

    def apply(operator: str, a: Fraction | None, b: Fraction | None) -> Fraction | None:
        if a is None or b is None or (operator == "/" and b == 0):
            return None
        return {"+": a + b, "-": a - b, "*": a * b}[operator] if operator != "/" else a / b

    values: set[Fraction | None] = set()
    for order in permutations([Fraction(number) for number in nums]):
        for operators in product("+-*/", repeat=len(nums) - 1):
            if len(order) == 2:
                values.add(apply(operators[0], *order))
            else:
                a, b, c = order
                values.add(apply(operators[1], apply(operators[0], a, b), c))
                values.add(apply(operators[0], a, apply(operators[1], b, c)))
    return {value for value in values if value is not None}


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 12), min_size=2, max_size=3))
def test_the_solver_finds_what_brute_force_finds(nums: list[int]) -> None:
    reachable = _reachable(nums)
    for target in range(0, 40):
        solution = solve(nums, target)
        assert (solution is not None) == (Fraction(target) in reachable)
        if solution is not None:
            completion = f"<answer>{solution.expression}</answer>"
            assert score_countdown(nums, target, completion, "").verdict is Verdict.CORRECT


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 99), min_size=4, max_size=4), st.data())
def test_four_numbers_are_solved_and_the_steps_are_true(nums: list[int], data: st.DataObject) -> None:
    a, b, c, d = data.draw(st.permutations(nums))
    target = data.draw(st.sampled_from([a + b + c + d, a * b + c * d, (a + b) * (c + d), a + b * c + d]))
    solution = solve(nums, target)
    assert solution is not None
    assert score_countdown(nums, target, f"<answer>{solution.expression}</answer>", "").verdict is Verdict.CORRECT
    assert len(solution.steps) == 3
    for step in solution.steps:
        match = re.fullmatch(r"(\d+)([-+*/])(\d+)=(\d+)", step)  # whole and positive: a natural solution exists
        assert match is not None
        left, operator, right, result = match.groups()
        assert eval(f"Fraction({left}){operator}Fraction({right})") == int(result)
    assert solution.steps[-1].endswith(f"={target}")


def test_fractions_only_where_nothing_else_works() -> None:
    assert solve([1, 3, 4, 6], 24) is not None  # 6/(1-3/4): the classic that needs a fraction
    assert solve([1, 3, 4, 6], 24) == solve([1, 3, 4, 6], 24)
    assert solve([1, 1, 1, 1], 24) is None
    assert solve([3, 5], -2) is not None


@pytest.mark.parametrize("think", [True, False])
def test_demonstrations(think: bool) -> None:
    task = Countdown(think=think)
    problem = task._problem([44, 19, 35], 98)
    expected = "<answer>(44+19)+35</answer>"
    assert task.demonstrate(problem) == ("<think>44+19=63; 63+35=98</think>" if think else "") + expected
    assert ("<think>" in problem.messages[0].content) is think
    with pytest.raises(ConfigError, match="has no solution to demonstrate"):
        task.demonstrate(task._problem([1, 1, 1], 98))


def _write(path: Path, rows: list[object]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_data_instead_of_generated_puzzles(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows: list[object] = [{"nums": [number, 2, 3], "target": number + 5} for number in range(10, 40)]
    source = _write(tmp_path / "a.jsonl", [*rows, {"nums": [3, 2, 10], "target": 15}])
    with caplog.at_level(logging.WARNING):
        train, held_out = check_splits(make_task("countdown", {"train": source, "num_train": 0, "num_held_out": 5}))
    assert "skipped 1 rows that repeat a problem" in caplog.text
    assert (len(train), len(held_out)) == (25, 5)
    # The choice is by hash: the order of the data does not matter.
    other = _write(tmp_path / "b.jsonl", rows[::-1])
    again = make_task("countdown", {"train": other, "num_train": 0, "num_held_out": 5}).problems("held_out")
    assert [problem.id for problem in again] == [problem.id for problem in held_out]
    capped = make_task("countdown", {"train": source, "num_train": 7, "num_held_out": 5})
    assert capped.problems("train") == train[:7]
    own = make_task("countdown", {"train": source, "num_train": 0, "held_out": other, "num_held_out": 3})
    train, held_out = check_splits(own)
    assert (len(train), len(held_out)) == (27, 3)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"nums": [1, 2]}, "row 1: no key 'target'"),
        ({"target": 3}, "row 1: no key 'nums'"),
        ({"nums": "1 2", "target": 3}, "row 1: 'nums' is 1 2, expected"),
        ({"nums": [1, "2"], "target": 3}, "row 1: 'nums'"),
        ({"nums": [1, 2.5], "target": 3}, "row 1: 'nums'"),
        ({"nums": [1, True], "target": 3}, "row 1: 'nums'"),
        ({"nums": [1], "target": 3}, "row 1: 'nums'"),
        ({"nums": [1, -2], "target": 3}, "row 1: 'nums'"),
        ({"nums": [1, 2], "target": 10**30}, "row 1: 'target'"),
        ({"nums": [1, 2], "target": None}, "row 1: 'target' is None"),
    ],
)
def test_bad_rows(tmp_path: Path, row: object, message: str) -> None:
    source = _write(tmp_path / "a.jsonl", [row])
    with pytest.raises(ConfigError, match=message):
        make_task("countdown", {"train": source}).problems("train")
