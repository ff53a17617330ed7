"""The groups of one step: choose problems, sample, score, and resample groups with no signal.

choose problems ─▶ sample and score ─▶ grow groups with no signal (max_rollouts_per_problem)
                        ▲                    │
                        └── other problems ◀─┴─ set aside groups that still have none (refill_rounds)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from groupwise.base.seeds import seed_of
from groupwise.config import RlStage
from groupwise.data.sampler import ProblemSampler
from groupwise.distributed.world import World
from groupwise.engines.engine import Engine, Request
from groupwise.models.chat import Prompts
from groupwise.scoring.credit import shape_group
from groupwise.scoring.rollouts import Clock, sample_and_score
from groupwise.scoring.scorer import Scorer
from groupwise.types import Group, Problem, SamplingParams, Score, ScoredGroup


@dataclass(frozen=True, slots=True)
class Collected:
    groups: tuple[ScoredGroup, ...]
    """Groups that the step learns from, without advantages yet."""
    set_aside: tuple[ScoredGroup, ...]
    """Groups with no signal that were replaced. They are logged and count in the sampling metrics."""
    num_extra_rollouts: int
    sample_s: float
    score_s: float


@dataclass(frozen=True, slots=True)
class Collector:
    """Samples and scores the groups of a stage. It has no state: random streams are a hash of the step."""

    stage: RlStage
    scorer: Scorer
    engine: Engine
    prompts: Prompts
    seed: int
    world: World

    def collect(self, sampler: ProblemSampler, stage_step: int, policy_version: int) -> Collected:
        stage = self.stage
        clock = Clock()
        kept: list[ScoredGroup] = []
        without_signal: list[ScoredGroup] = []
        num_extra = 0
        num_drawn = 0
        for _ in range(1 + stage.refill_rounds):
            missing = stage.problems_per_step - len(kept)
            draws = list(enumerate(sampler.draw(missing, stage_step), start=num_drawn))
            num_drawn += missing
            groups, extra = self._round(draws, stage_step, policy_version, clock)
            num_extra += extra
            for scored in groups:
                rate = scored.pass_rate
                if rate is not None:
                    sampler.observe(scored.group.prompt.problem.id, rate)
                is_kept = scored.has_signal or stage.refill_rounds == 0
                (kept if is_kept else without_signal).append(scored)
            if len(kept) == stage.problems_per_step:
                break
        return Collected(tuple(kept), tuple(without_signal), num_extra, clock.sample_s, clock.score_s)

    def _round(
        self, draws: Sequence[tuple[int, Problem]], stage_step: int, policy_version: int, clock: Clock
    ) -> tuple[list[ScoredGroup], int]:
        size = self.stage.rollouts_per_problem
        wanted = [(draw, problem, range(size)) for draw, problem in draws]
        groups = self._sample_and_score(wanted, stage_step, policy_version, clock)
        num_extra = 0
        for start in range(size, self.stage.max_rollouts_per_problem, size):
            dull = [index for index, scored in enumerate(groups) if not scored.has_signal]
            more = [(*draws[index], range(start, start + size)) for index in dull]
            for index, extra in zip(dull, self._sample_and_score(more, stage_step, policy_version, clock), strict=True):
                first = groups[index]
                group = replace(first.group, rollouts=first.group.rollouts + extra.group.rollouts)
                groups[index] = self._shaped(group, first.scores + extra.scores, stage_step)
                num_extra += size
        return groups, num_extra

    def _sample_and_score(
        self, wanted: Sequence[tuple[int, Problem, range]], stage_step: int, policy_version: int, clock: Clock
    ) -> list[ScoredGroup]:
        requests = []
        for draw, problem, numbers in wanted:
            # The draw's number distinguishes two draws of one problem in the same step.
            key = (self.seed, self.stage.name, stage_step, problem.id, draw)
            requests.append(Request(self.prompts[problem], tuple(seed_of(*key, number) for number in numbers)))
        sampling = SamplingParams(**asdict(self.stage.sampling))
        pairs = sample_and_score(self.engine, self.scorer, requests, sampling, policy_version, self.world, clock)
        return [self._shaped(group, scores, stage_step) for group, scores in pairs]

    def _shaped(self, group: Group, scores: tuple[Score, ...], stage_step: int) -> ScoredGroup:
        return shape_group(group, scores, self.stage.reward, stage_step, self.stage.sampling.max_new_tokens)
