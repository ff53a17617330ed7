"""Collecting the groups of a step, with an engine whose completions are set by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from groupwise.config import CurriculumConfig, RlStage, make_recipe
from groupwise.data.sampler import ProblemSampler
from groupwise.distributed.world import World
from groupwise.engines.engine import Request
from groupwise.models.chat import Prompts
from groupwise.models.tiny import make_tokenizer
from groupwise.scoring.scorer import LocalScorer, ScoreFunction
from groupwise.training.collect import Collected, Collector
from groupwise.types import Finish, Group, Message, Problem, Rollout, SamplingParams, Score, Verdict

PROBLEMS = [Problem(f"p{n}", (Message("user", str(n)),), str(n)) for n in range(40)]


class TextTask:
    """The text is the reward."""

    verifier = "text/1"

    def problems(self, split: str) -> Sequence[Problem]:
        return PROBLEMS

    def score(self, problem: Problem, completion: str) -> Score:
        reward = float(completion)
        return Score(reward, Verdict.CORRECT if reward == 1 else Verdict.WRONG)


class ScriptedEngine:
    """Hands out groups in reverse order; what the n-th rollout of a problem says is the script's."""

    def __init__(self, script: Callable[[str, int], str]) -> None:
        self.script = script
        self.requests: list[list[Request]] = []
        self.counts: dict[str, int] = {}

    def generate(
        self, requests: Sequence[Request], sampling: SamplingParams, policy_version: int
    ) -> Iterator[tuple[int, Group]]:
        self.requests.append(list(requests))
        for index in reversed(range(len(requests))):
            request = requests[index]
            rollouts = []
            for _ in request.seeds:
                number = self.counts.get(request.prompt.problem.id, 0)
                self.counts[request.prompt.problem.id] = number + 1
                text = self.script(request.prompt.problem.id, number)
                rollouts.append(Rollout((1, 2), (-1.0, -1.0), text, Finish.STOP, policy_version))
            yield index, Group(request.prompt, tuple(rollouts))

    @property
    def seeds(self) -> list[int]:
        return [seed for batch in self.requests for request in batch for seed in request.seeds]


def make_stage(**changes: Any) -> RlStage:
    stage = {"algorithm": "grpo", "steps": 9, "problems_per_step": 4, "rollouts_per_problem": 2} | changes
    table = {"name": "t", "model": {"path": "tiny-qwen3"}, "task": {"name": "x:Y"}, "stages": [stage]}
    made = make_recipe(table).stages[0]
    assert isinstance(made, RlStage)
    return made


def collect(engine: ScriptedEngine, stage_step: int = 0, num_problems: int = 40, **changes: Any) -> Collected:
    sampler = ProblemSampler(PROBLEMS[:num_problems], CurriculumConfig(), seed=0)
    scorer = LocalScorer(ScoreFunction(TextTask()))
    collector = Collector(make_stage(**changes), scorer, engine, Prompts(make_tokenizer()), seed=0, world=World())
    return collector.collect(sampler, stage_step, policy_version=3)


def is_even(name: str) -> bool:
    return int(name[1:]) % 2 == 0


def ids(groups: Sequence[Any]) -> list[str]:
    return [scored.group.prompt.problem.id for scored in groups]


def test_groups_come_back_in_the_order_they_were_drawn_whatever_the_engine_does() -> None:
    engine = ScriptedEngine(lambda name, number: str(number % 2))
    collected = collect(engine)
    assert ids(collected.groups) == [request.prompt.problem.id for request in engine.requests[0]]
    assert all(scored.has_signal and scored.rewards == (0.0, 1.0) for scored in collected.groups)
    assert {r.policy_version for scored in collected.groups for r in scored.group.rollouts} == {3}


def test_without_refill_dead_groups_stay_in_the_batch() -> None:
    collected = collect(ScriptedEngine(lambda name, number: "0"))
    assert len(collected.groups) == 4
    assert not any(scored.has_signal for scored in collected.groups)
    assert collected.set_aside == ()


def test_refill_replaces_dead_groups_by_other_problems_until_the_step_is_full() -> None:
    """Even problems have signal, odd ones have none."""
    engine = ScriptedEngine(lambda name, number: str(number % 2) if is_even(name) else "0")
    collected = collect(engine, refill_rounds=20)
    assert len(collected.groups) == 4
    assert all(map(is_even, ids(collected.groups)))
    assert not any(map(is_even, ids(collected.set_aside)))
    drawn = [request.prompt.problem.id for batch in engine.requests for request in batch]
    assert sorted(drawn) == sorted(ids(collected.groups) + ids(collected.set_aside))
    assert len(set(drawn)) == len(drawn)


def test_refill_gives_up_after_its_rounds() -> None:
    engine = ScriptedEngine(lambda name, number: "1")
    collected = collect(engine, refill_rounds=2)
    assert collected.groups == ()
    assert len(collected.set_aside) == 3 * 4
    assert len(engine.requests) == 3


def test_a_group_without_signal_grows_until_it_has_some_or_reaches_the_cap() -> None:
    """p-numbers divisible by 3 show signal at once, by 2 with the fifth rollout, others never."""

    def script(name: str, number: int) -> str:
        n = int(name[1:])
        return str(number % 2) if n % 3 == 0 else "1" if n % 2 == 0 and number == 4 else "0"

    engine = ScriptedEngine(script)
    collected = collect(engine, problems_per_step=40, max_rollouts_per_problem=8)
    sizes = {scored.group.prompt.problem.id: len(scored.group.rollouts) for scored in collected.groups}
    for name, size in sizes.items():
        n = int(name[1:])
        assert size == (2 if n % 3 == 0 else 6 if n % 2 == 0 else 8), name
    assert collected.num_extra_rollouts == sum(sizes.values()) - 2 * 40
    for scored in collected.groups:
        assert len(scored.scores) == len(scored.rewards) == len(scored.advantages) == len(scored.group.rollouts)


def test_no_two_rollouts_share_a_random_stream() -> None:
    """Also where problems come up again within a step, by refilling or for want of others, and as groups grow."""
    engine = ScriptedEngine(lambda name, number: "0")
    collect(engine, num_problems=3, problems_per_step=7, refill_rounds=3, max_rollouts_per_problem=6)
    assert len(engine.seeds) == 4 * 7 * 6
    assert len(set(engine.seeds)) == len(engine.seeds)


def test_streams_differ_between_steps_and_are_the_same_again() -> None:
    runs = [ScriptedEngine(lambda name, number: "0") for _ in range(3)]
    for engine, stage_step in zip(runs, (0, 0, 1), strict=True):
        collect(engine, stage_step)
    assert runs[0].seeds == runs[1].seeds
    assert not set(runs[0].seeds) & set(runs[2].seeds)
