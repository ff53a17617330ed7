from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from groupwise.config import ConfigError, CurriculumConfig
from groupwise.data.sampler import ProblemSampler
from groupwise.types import Problem


def problems(count: int, **meta: Any) -> list[Problem]:
    return [Problem(f"p{index}", (), "", {"level": index, **meta}) for index in range(count)]


def ids(drawn: list[Problem]) -> list[str]:
    return [problem.id for problem in drawn]


CURRICULA = [
    CurriculumConfig(),
    CurriculumConfig(kind="level", level_steps=5),
    CurriculumConfig(kind="pass_rate"),
]
by_kind = pytest.mark.parametrize("curriculum", CURRICULA, ids=lambda c: c.kind)


def test_each_pass_has_every_problem_once_in_another_order() -> None:
    sampler = ProblemSampler(problems(12), CurriculumConfig(), seed=3)
    passes = [[name for _ in range(4) for name in ids(sampler.draw(3, 0))] for _ in range(3)]
    assert all(sorted(one) == sorted(ids(problems(12))) for one in passes)
    assert len({tuple(one) for one in passes}) == 3


def test_passes_are_whole_when_the_draw_does_not_divide_them() -> None:
    """7 problems, 3 a draw: any 7 drawn in a row from the start of a pass are all problems."""
    sampler = ProblemSampler(problems(7), CurriculumConfig(), seed=0)
    drawn = [name for _ in range(7) for name in ids(sampler.draw(3, 0))]
    assert all(len(set(drawn[start : start + 7])) == 7 for start in (0, 7, 14))


def test_no_problem_twice_in_a_draw_across_passes() -> None:
    for seed in range(10):
        sampler = ProblemSampler(problems(5), CurriculumConfig(), seed)
        assert all(len(set(ids(sampler.draw(4, 0)))) == 4 for _ in range(10))


@pytest.mark.parametrize("curriculum", CURRICULA[1:], ids=lambda c: c.kind)
def test_no_problem_twice_in_a_draw(curriculum: CurriculumConfig) -> None:
    sampler = ProblemSampler(problems(9), curriculum, seed=1)
    for step in range(5, 15):
        drawn = ids(sampler.draw(4, step))
        assert len(set(drawn)) == 4
        for name in drawn:
            sampler.observe(name, 0.5 if int(name[1:]) % 2 else 1.0)


@by_kind
def test_the_order_is_a_function_of_the_seed(curriculum: CurriculumConfig) -> None:
    def draws(seed: int) -> list[list[str]]:
        sampler = ProblemSampler(problems(20), curriculum, seed)
        return [ids(sampler.draw(6, step)) for step in range(6)]

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)


@by_kind
@pytest.mark.parametrize("num_before", [0, 1, 3])
def test_restored_mid_way_the_future_is_the_same(curriculum: CurriculumConfig, num_before: int) -> None:
    def advance(sampler: ProblemSampler, steps: range) -> list[list[str]]:
        result = []
        for step in steps:
            drawn = ids(sampler.draw(5, step))
            for name in drawn:
                sampler.observe(name, (int(name[1:]) * 7 + step) % 5 / 4)
            result.append(drawn)
        return result

    original = ProblemSampler(problems(13), curriculum, seed=4)
    advance(original, range(num_before))
    state = json.loads(json.dumps(original.state()))
    restored = ProblemSampler(problems(13), curriculum, seed=4)
    restored.load_state(state)
    future = range(num_before, num_before + 6)
    assert advance(restored, future) == advance(original, future)
    assert restored.state() == original.state()
    assert restored.metrics() == original.metrics()


def test_a_state_is_a_copy() -> None:
    sampler = ProblemSampler(problems(3), CurriculumConfig(kind="pass_rate"), seed=0)
    state = sampler.state()
    sampler.observe("p0", 1.0)
    assert state["pass_rates"] == {}


def test_level_cap_rises_from_the_lowest_to_the_highest() -> None:
    sampler = ProblemSampler(problems(11), CurriculumConfig(kind="level", level_steps=10), seed=0)
    highest = [max(problem.meta["level"] for problem in sampler.draw(200, step)) for step in (0, 1, 5, 10, 50)]
    assert highest == [0, 1, 5, 10, 10]


def test_problems_in_reach_come_up_evenly_when_there_are_too_few() -> None:
    sampler = ProblemSampler(problems(11), CurriculumConfig(kind="level", level_steps=10), seed=0)
    counts = Counter(ids(sampler.draw(7, 2)))
    assert set(counts) == {"p0", "p1", "p2"}
    assert sorted(counts.values()) == [2, 2, 3]


@by_kind
def test_fewer_problems_than_wanted(curriculum: CurriculumConfig) -> None:
    sampler = ProblemSampler(problems(3), curriculum, seed=0)
    for step in (0, 99):
        assert len(sampler.draw(8, step)) == 8
    assert set(ids(sampler.draw(8, 99))) == {"p0", "p1", "p2"}


@pytest.mark.parametrize("level", [None, "hard", True])
def test_levels_must_be_numbers(level: Any) -> None:
    bad = [Problem("p0", (), "", {"level": 1}), Problem("p1", (), "", {"level": level})]
    with pytest.raises(ConfigError, match=r"p1 has level .*pass_rate"):
        ProblemSampler(bad, CurriculumConfig(kind="level"), seed=0)


def pass_rate_sampler(**keys: Any) -> ProblemSampler:
    """20 problems: p0–p9 half solved, p10–p14 never, p15–p19 always."""
    sampler = ProblemSampler(problems(20), CurriculumConfig(kind="pass_rate", **keys), seed=0)
    for index in range(20):
        sampler.observe(f"p{index}", 0.5 if index < 10 else 0.0 if index < 15 else 1.0)
    return sampler


def test_active_problems_and_a_share_of_the_others() -> None:
    sampler = pass_rate_sampler(explore_share=0.25)
    for _ in range(10):
        active = [int(name[1:]) < 10 for name in ids(sampler.draw(8, 0))]
        assert (sum(active), len(active)) == (6, 8)


@pytest.mark.parametrize(("share", "num_active"), [(0.0, 8), (1.0, 0)])
def test_explore_share_extremes(share: float, num_active: int) -> None:
    drawn = ids(pass_rate_sampler(explore_share=share).draw(8, 0))
    assert sum(int(name[1:]) < 10 for name in drawn) == num_active


def test_without_active_problems_it_explores_and_the_other_way_round() -> None:
    sampler = ProblemSampler(problems(6), CurriculumConfig(kind="pass_rate"), seed=0)
    assert len(set(ids(sampler.draw(6, 0)))) == 6
    for index in range(6):
        sampler.observe(f"p{index}", 0.5)
    assert len(set(ids(sampler.draw(6, 0)))) == 6


def test_problems_move_between_pools() -> None:
    """A running rate with memory 0.5: 0 → 0.5 after one pass of 1 (active), → 0.97 after four more (easy)."""
    sampler = pass_rate_sampler(explore_share=0.0)
    sampler.observe("p10", 1.0)
    assert sampler.state()["pass_rates"]["p10"] == 0.5
    assert "p10" in {name for _ in range(20) for name in ids(sampler.draw(8, 0))}
    for _ in range(4):
        sampler.observe("p10", 1.0)
    assert sampler.state()["pass_rates"]["p10"] == pytest.approx(1 - 0.5**5)
    assert "p10" not in {name for _ in range(20) for name in ids(sampler.draw(8, 0))}


def test_memory_is_the_weight_of_the_newest_group() -> None:
    sampler = ProblemSampler(problems(2), CurriculumConfig(kind="pass_rate", memory=0.25), seed=0)
    sampler.observe("p0", 1.0)
    sampler.observe("p0", 0.0)
    assert sampler.state()["pass_rates"] == {"p0": 0.75}


def test_pass_rate_metric_is_the_mean() -> None:
    assert pass_rate_sampler().metrics() == {"curriculum/pass_rate_mean": pytest.approx(0.5)}
    assert ProblemSampler(problems(3), CurriculumConfig(), seed=0).metrics() == {}


def test_observing_does_nothing_without_the_pass_rate_curriculum() -> None:
    sampler = ProblemSampler(problems(3), CurriculumConfig(), seed=0)
    sampler.observe("p0", 1.0)
    assert sampler.state() == {"num_drawn": 0, "held_back": [], "pass_rates": {}}
