"""The choice of the next problems: shuffled passes, easy levels first, or problems that the policy half solves.

The order is a hash of (seed, number of problems drawn so far). The state is that number, the few problems that the last
draw across two passes held back and, for the pass-rate curriculum, a running pass rate per problem. `state()` is plain
JSON and goes into checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from groupwise.base.seeds import shuffled
from groupwise.config import ConfigError, CurriculumConfig
from groupwise.types import Problem


class ProblemSampler:
    def __init__(self, problems: Sequence[Problem], curriculum: CurriculumConfig, seed: int) -> None:
        self._problems = problems
        self._curriculum = curriculum
        self._seed = seed
        self._num_drawn = 0
        self._held_back: list[int] = []
        self._pass_rates: dict[str, float] = {}
        self._levels = self._read_levels() if curriculum.kind == "level" else {}

    def draw(self, count: int, stage_step: int) -> list[Problem]:
        """Return the next `count` problems. None repeats unless there are fewer problems than that."""
        if self._curriculum.kind == "none":
            return self._draw_pass(count)
        order = shuffled(len(self._problems), self._seed, "curriculum", self._num_drawn)
        self._num_drawn += count
        candidates = [self._problems[index] for index in order]
        if self._curriculum.kind == "level":
            cap = self._level_cap(stage_step)
            chosen = [problem for problem in candidates if self._levels[problem.id] <= cap][:count]
        else:
            chosen = self._draw_by_pass_rate(candidates, count)
        # Fewer problems than needed: repeat them in the same order.
        return [chosen[index % len(chosen)] for index in range(count)]

    def observe(self, problem_id: str, pass_rate: float) -> None:
        """Record the pass rate of a problem's newest group."""
        if self._curriculum.kind != "pass_rate":
            return
        memory = self._curriculum.memory
        before = self._pass_rates.get(problem_id, pass_rate)
        self._pass_rates[problem_id] = (1 - memory) * before + memory * pass_rate

    def metrics(self) -> dict[str, float]:
        if not self._pass_rates:
            return {}
        return {"curriculum/pass_rate_mean": sum(self._pass_rates.values()) / len(self._pass_rates)}

    def state(self) -> dict[str, Any]:
        return {
            "num_drawn": self._num_drawn,
            "held_back": list(self._held_back),
            "pass_rates": dict(self._pass_rates),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._num_drawn = state["num_drawn"]
        self._held_back = list(state["held_back"])
        self._pass_rates = dict(state["pass_rates"])

    def _draw_pass(self, count: int) -> list[Problem]:
        """Draw from endless shuffled passes. If a draw crosses into the next pass, its problems come last there."""
        total = len(self._problems)
        drawn: list[int] = []
        while len(drawn) < count:
            number, index = divmod(self._num_drawn, total)
            if index == 0:
                self._held_back = drawn if count <= total else []
            order = [i for i in shuffled(total, self._seed, "pass", number) if i not in self._held_back]
            order += self._held_back
            chosen = order[index : index + count - len(drawn)]
            self._num_drawn += len(chosen)
            drawn = drawn + chosen
        return [self._problems[index] for index in drawn]

    def _draw_by_pass_rate(self, candidates: list[Problem], count: int) -> list[Problem]:
        low, high = self._curriculum.low, self._curriculum.high
        pools: dict[str, list[Problem]] = {"active": [], "new": [], "hard": [], "easy": []}
        for problem in candidates:
            rate = self._pass_rates.get(problem.id)
            pool = "new" if rate is None else "hard" if rate < low else "easy" if rate > high else "active"
            pools[pool].append(problem)
        num_explore = round(count * self._curriculum.explore_share)
        # One of each pool in turn, so that every pool is used.
        turns = zip_longest(pools["new"], pools["hard"], pools["easy"])
        explore = [problem for turn in turns for problem in turn if problem is not None]
        chosen = pools["active"][: count - num_explore]
        chosen += explore[: count - len(chosen)]
        # Nothing left to explore: fill up from the active pool.
        return chosen + pools["active"][count - num_explore :][: count - len(chosen)]

    def _level_cap(self, stage_step: int) -> float:
        lowest, highest = min(self._levels.values()), max(self._levels.values())
        return lowest + (highest - lowest) * min(stage_step / self._curriculum.level_steps, 1.0)

    def _read_levels(self) -> dict[str, float]:
        levels = {}
        for problem in self._problems:
            level = problem.meta.get("level")
            if not isinstance(level, (int, float)) or isinstance(level, bool):
                raise ConfigError(
                    f'curriculum.kind = "level": problem {problem.id} has level {level!r}, not a number; '
                    'use kind = "pass_rate" for tasks without levels'
                )
            levels[problem.id] = float(level)
        return levels
