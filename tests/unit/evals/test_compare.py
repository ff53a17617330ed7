"""Two sides on the same problems: counted by hand, told in a sentence, refused where they are not the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from groupwise.base.stats import mcnemar_p, paired_interval
from groupwise.config import ConfigError
from groupwise.evals.compare import Side, compare, read_side
from groupwise.runs.results import Result, append_group, write_result
from groupwise.types import ScoredGroup
from tests.factories import ERROR, RIGHT, WRONG, make_scored


def side(name: str, groups: list[ScoredGroup], **changes: object) -> Side:
    made = Side(
        name=name,
        task="gsm8k",
        options={"held_out": "x.jsonl"},
        verifier="gsm8k/2",
        data="abc",
        sampling={"n": 1, "temperature": 0.0},
        groups={group.group.prompt.problem.id: group for group in groups},
        scores={},
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def answered(*is_right: bool) -> list[ScoredGroup]:
    return [make_scored(f"p{key}", [("x", RIGHT if right else WRONG)]) for key, right in enumerate(is_right)]


def test_one_completion_a_problem_by_hand() -> None:
    first = side("A", answered(*[True] * 40, *[False] * 60))
    second = side("B", answered(*[True] * 38, *[False] * 2, *[True] * 20, *[False] * 40))
    found = compare(first, second)
    assert (found.num_problems, found.left_out, found.test) == (100, 0, "mcnemar")
    assert (len(found.gained), len(found.lost)) == (20, 2)
    assert found.difference == pytest.approx(0.18)
    assert (found.first_value, found.second_value) == (0.4, 0.58)
    assert found.p == mcnemar_p(20, 2)
    low, high = paired_interval([1.0] * 20 + [-1.0] * 2 + [0.0] * 78)
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    told = f"+18.0 points, 95 % interval {100 * low:+.1f} to {100 * high:+.1f}, on 100 problems"
    assert found.verdict == f"B is better than A: {told}"
    turned = compare(second, first)
    assert turned.verdict.startswith("A is worse than B: −18.0 points, 95 % interval −")


def test_the_same_is_no_clear_difference() -> None:
    same = side("A", answered(True, False, True))
    found = compare(same, replace(same, name="B"))
    assert found.verdict.startswith("no clear difference between A and B: +0.0 points, 95 % interval −")
    assert found.p == 1.0


def test_several_completions_are_compared_by_their_shares() -> None:
    def four(key: str, num_right: int) -> ScoredGroup:
        return make_scored(key, [("x", RIGHT)] * num_right + [("y", WRONG)] * (4 - num_right))

    first = side("A", [four("a", 0), four("b", 3), four("c", 2)])
    second = side("B", [four("a", 4), four("b", 2), four("c", 2)])
    found = compare(first, second)
    assert found.test == "paired_bootstrap"
    assert found.difference == pytest.approx((1 - 0.25 + 0) / 3)
    assert [flip.problem_id for flip in found.gained] == ["a"]
    assert [(flip.problem_id, flip.before, flip.after) for flip in found.lost] == [("b", 0.75, 0.5)]


def test_what_is_on_one_side_alone_or_could_not_be_judged_is_left_out() -> None:
    first = side("A", [*answered(True, False, True), make_scored("only", [("x", RIGHT)])])
    second = side("B", [*answered(True, False), make_scored("p2", [("x", ERROR)])])
    found = compare(first, second)
    assert (found.num_problems, found.left_out) == (2, 2)
    with pytest.raises(ConfigError, match="share no judged problem"):
        compare(first, side("C", [make_scored("elsewhere", [("x", RIGHT)])]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "math"}, "tasks are 'gsm8k' and 'math'"),
        ({"verifier": "gsm8k/1"}, "verifiers are 'gsm8k/2' and 'gsm8k/1'"),
        ({"data": "other"}, "data differ"),
        ({"options": {"answer_marks": ["number"]}}, "task option answer_marks is None and"),
    ],
)
def test_other_questions_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compare(side("A", answered(True)), side("B", answered(True), **change))


def test_another_problem_under_the_same_id_is_refused() -> None:
    other = [make_scored("p0", [("x", RIGHT)], question="What else?")]
    with pytest.raises(ConfigError, match="problem p0 is not the same"):
        compare(side("A", answered(True), data=None), side("B", other))


def test_where_the_data_lie_may_differ_and_another_way_of_sampling_is_told() -> None:
    second = side("B", answered(True), options={"held_out": "y.jsonl"}, sampling={"n": 1, "temperature": 0.7})
    assert compare(side("A", answered(True)), second).notes == ("temperature is 0.0 for A and 0.7 for B",)


def test_sides_are_read_from_result_folders(tmp_path: Path) -> None:
    result = Result(
        model={"path": "m", "checkpoint": None, "fingerprint": "f"},
        task={"name": "gsm8k", "options": {}},
        data={"split": "held_out", "fingerprint": "abc", "count": 1},
        verifier="gsm8k/2",
        sampling={"n": 1},
    )
    write_result(tmp_path, result)
    with pytest.raises(ConfigError, match="not finished"):
        read_side(str(tmp_path))
    (group,) = answered(True)
    append_group(tmp_path, group)
    write_result(tmp_path, replace(result, is_finished=True))
    assert read_side(str(tmp_path)).groups == {"p0": group}
    with pytest.raises(ConfigError, match="neither a result"):
        read_side(str(tmp_path / "nowhere"))
