"""What a larger group buys: noise of the advantage and of the gradient against G, and the seconds that G costs.

    model, task ─▶ 2 × the largest G rollouts a problem ─▶ a gradient of each ─▶ deals into groups (group_noise)
                                                      └─▶ seconds to sample and to learn from G rollouts a problem

Gradients are of all weights. What is kept of one is a sketch: its numbers, each with a random sign of its own, added up
modulo SKETCH, which keeps inner products but for a noise of about 1/sqrt(SKETCH). The policy is not changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from groupwise.base.stats import mean
from groupwise.bench.engine_speed import synchronize
from groupwise.bench.group_noise import Figure, Noise, bought, common_signal, measure_noise, signal_to_noise, slope
from groupwise.config import ConfigError, OptimizerConfig, VerifierConfig
from groupwise.data.batch import Example, weigh
from groupwise.engines.engine import Engine
from groupwise.evals.draw import draw_scored, make_requests
from groupwise.evals.evaluate import make_engine
from groupwise.evals.questions import task_options
from groupwise.evals.subject import open_subject
from groupwise.models.chat import Prompts
from groupwise.models.placement import bundles
from groupwise.models.policy import Policy
from groupwise.scoring.scorer import make_scorer
from groupwise.tasks import make_task
from groupwise.train.update import TokenLoss, update_policy
from groupwise.types import Prompt, SamplingParams, ScoredGroup

SKETCH = 8192
Sketch = Callable[[Mapping[str, Tensor]], Tensor]
RULES = ("group_mean_std", "group_mean")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsWork:
    model: str
    """As `groupwise eval` takes it."""
    task: str
    options: tuple[str, ...] = ()
    problems: int = 16
    sizes: tuple[int, ...] = (4, 8, 16, 32, 64)
    temperature: float = 1.0
    max_new_tokens: int = 256
    microbatch_tokens: int = 16384
    seed: int = 0

    def __post_init__(self) -> None:
        if self.problems < 2:
            raise ConfigError(f"--problems {self.problems}: intervals are over problems, so there must be at least 2")
        if len(self.sizes) < 2 or min(self.sizes) < 2 or len(set(self.sizes)) < len(self.sizes):
            raise ConfigError(f"--sizes {','.join(map(str, self.sizes))}: name at least two, each once and from 2 on")


@dataclass(frozen=True, slots=True)
class SizeFigures:
    size: int
    dead_share: float
    advantage_variance: dict[str, float]
    """By advantage rule; so is what follows."""
    gradient_variance: dict[str, float]
    signal_to_noise: dict[str, float]
    """Squared length of a problem's own gradient over the variance of its groups' around it."""
    signal_to_noise_interval: dict[str, tuple[float, float]]
    """95 %, over problems."""
    bought: dict[str, Figure]
    """Signal to noise over that of the next smaller size; empty for the smallest."""
    step_signal_to_noise: dict[str, Figure]
    """That of the gradient which problems have in common, over all noise around it: that of groups, and that problems
    differ, which no size lowers. Of one problem, with an interval over problems; a step with P of them has P times it.
    """
    sample_s: float
    learn_s: float
    """Of a step with this many rollouts of each problem."""
    step_signal_to_noise_per_s: dict[str, float]
    """Of all problems, over the seconds: the size with the largest is the best use of the time."""


@dataclass(frozen=True, slots=True)
class GroupsResult:
    model: str
    task: str
    device: str
    num_problems: int
    num_left_out: int
    """Problems with a rollout that we failed to score."""
    pass_at_1: float
    mean_tokens: float
    sizes: tuple[SizeFigures, ...]
    slopes: dict[str, dict[str, Figure]]
    """By rule, of advantage and of gradient variance: log variance against log G, with its interval; −1 is 1/G."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        rule = RULES[0]
        lines = [
            f"{self.model} on {self.task}, {self.device}: {self.num_problems} problems, pass@1 {self.pass_at_1:.1%}, "
            f"{self.mean_tokens:.0f} tokens a completion",
            f"{'G':>4}{'dead':>8}{'var advantage':>15}{'var gradient':>14}{'signal/noise':>14}{'of a step':>11}"
            f"{'sample s':>10}{'learn s':>9}{'per s':>11}",
        ]
        for row in self.sizes:
            lines.append(
                f"{row.size:>4}{row.dead_share:>8.1%}{row.advantage_variance[rule]:>15.4f}"
                f"{row.gradient_variance[rule]:>14.4g}{row.signal_to_noise[rule]:>14.4f}"
                f"{row.step_signal_to_noise[rule][0]:>11.4f}{row.sample_s:>10.2f}{row.learn_s:>9.2f}"
                f"{row.step_signal_to_noise_per_s[rule]:>11.4g}"
            )
        for name in RULES:
            for kind, (value, low, high) in self.slopes[name].items():
                lines.append(f"{name}, {kind} variance: G^{value:.2f} (95 % interval {low:.2f} to {high:.2f})")
            for smaller, row in pairwise(self.sizes):
                value, low, high = row.bought[name]
                said = f"{value:.2f} × the signal to noise (95 % interval {low:.2f} to {high:.2f})"
                if not smaller.signal_to_noise_interval[name][0] > 0:
                    said = f"not known: at {smaller.size} these problems do not tell the signal from none"
                lines.append(f"{name}, {smaller.size} to {row.size}: {said}")
        return "\n".join(lines)


def bench_groups(work: GroupsWork) -> GroupsResult:
    subject = open_subject(work.model)
    policy, engine = subject.policy, make_engine(subject)
    task = make_task(work.task, task_options(work.task, [work.task], work.options, subject.recipe))
    prompts = Prompts(policy.tokenizer)
    asked = [prompts[problem] for problem in task.problems("train")[: work.problems]]
    sampling = SamplingParams(max_new_tokens=work.max_new_tokens, temperature=work.temperature)
    scorer = make_scorer(task, VerifierConfig())
    try:
        drawn = list(draw_scored(engine, scorer, make_requests(asked, 2 * max(work.sizes), work.seed), sampling))
    finally:
        scorer.close()
    groups = [scored for scored in drawn if not any(score.is_error for score in scored.scores)]
    if len(groups) < 2:
        raise ConfigError(f"--task {work.task}: {len(drawn)} problems, and all but {len(groups)} could not be scored")
    rewards = torch.tensor([[score.reward for score in scored.scores] for scored in groups], dtype=torch.float64)
    if not (rewards != rewards[:, :1]).any():
        raise ConfigError(
            f"--task {work.task}: the rollouts of each problem all have the same reward (pass@1 "
            f"{_pass_rate(groups):.1%}), so no group has an advantage to measure; take a model that gets some right"
        )
    # A stage keeps its sums where they are, so that the passes over thousands of single rollouts can be recorded. Steps
    # come first: what they need of memory and do not get is then known before the long part.
    policy.begin_stage(OptimizerConfig(), keep_reference=False)
    sizes = sorted(work.sizes)
    for size in reversed(sizes):  # warm-up: packs of sizes that were not seen before are recorded
        _time(policy, engine, asked, groups, size, work, sampling)
    times = [_time(policy, engine, asked, groups, size, work, sampling) for size in sizes]
    sketch = Sketcher(work.seed)
    gradients = torch.stack([torch.stack(list(_gradients(policy, scored, work, sketch))) for scored in groups])
    noises = {rule: [measure_noise(rewards, gradients, size, rule, work.seed) for size in sizes] for rule in RULES}
    rollouts = [rollout for scored in groups for rollout in scored.group.rollouts]
    return GroupsResult(
        model=work.model,
        task=work.task,
        device=policy.device_name,
        num_problems=len(groups),
        num_left_out=len(drawn) - len(groups),
        pass_at_1=_pass_rate(groups),
        mean_tokens=sum(len(rollout.token_ids) for rollout in rollouts) / len(rollouts),
        sizes=tuple(_figures(index, noises, seconds, work.seed) for index, seconds in enumerate(times)),
        slopes={
            rule: {kind: slope(rows, f"{kind}_variance", work.seed) for kind in ("advantage", "gradient")}
            for rule, rows in noises.items()
        },
    )


def _figures(index: int, noises: dict[str, list[Noise]], seconds: tuple[float, float], seed: int) -> SizeFigures:
    def mean_of(name: str) -> dict[str, float]:
        return {rule: float(getattr(rows[index], name).mean()) for rule, rows in noises.items()}

    ratios = {rule: signal_to_noise(rows[index], seed) for rule, rows in noises.items()}
    in_step = {rule: _in_step(rows[index]) for rule, rows in noises.items()}
    num_problems = len(noises[RULES[0]][index].signal)
    return SizeFigures(
        size=noises[RULES[0]][index].size,
        dead_share=mean_of("dead_share")[RULES[0]],
        advantage_variance=mean_of("advantage_variance"),
        gradient_variance=mean_of("gradient_variance"),
        signal_to_noise={rule: value for rule, (value, _, _) in ratios.items()},
        signal_to_noise_interval={rule: (low, high) for rule, (_, low, high) in ratios.items()},
        bought={rule: bought(rows[index - 1], rows[index], seed) for rule, rows in noises.items() if index > 0},
        step_signal_to_noise=in_step,
        sample_s=seconds[0],
        learn_s=seconds[1],
        step_signal_to_noise_per_s={
            rule: num_problems * ratio / sum(seconds) for rule, (ratio, _, _) in in_step.items()
        },
    )


def _in_step(noise: Noise) -> Figure:
    common, low, high = common_signal(noise.gradients)
    # Of groups around their problem's gradient, and of those around what they have in common.
    variance = float(noise.gradient_variance.mean()) + float(noise.signal.mean()) - common
    return (common / variance, low / variance, high / variance) if variance > 0 else (0.0, 0.0, 0.0)


def _pass_rate(groups: Sequence[ScoredGroup]) -> float:
    return mean([scored.pass_rate or 0.0 for scored in groups])


def _examples(scored: ScoredGroup, count: int) -> list[Example]:
    prompt = scored.group.prompt.token_ids
    return [Example(prompt, rollout.token_ids) for rollout in scored.group.rollouts[:count] if rollout.token_ids]


def _gradients(policy: Policy, scored: ScoredGroup, work: GroupsWork, sketch: Sketch) -> Iterator[Tensor]:
    """[SKETCH], of the mean logprob of each rollout's tokens."""
    for rollout in scored.group.rollouts:
        policy.begin_gradients()
        if rollout.token_ids:
            example = Example(scored.group.prompt.token_ids, rollout.token_ids)
            with policy.training():
                (microbatch,) = policy.microbatches([example], [1.0], work.microbatch_tokens)
                logprobs, _ = policy.logprobs(microbatch, work.temperature)
                policy.backward(logprobs.mean())
        yield sketch(policy.gradients())
        policy.clear_gradients()


class Sketcher:
    """[SKETCH], on the CPU, of all numbers of some tensors. Inner products of two are the tensors' own, but for noise.

    The tensors have the same shapes each time: signs are drawn once.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._signs: list[Tensor] = []

    @torch.no_grad()
    def __call__(self, tensors: Mapping[str, Tensor]) -> Tensor:
        total = torch.zeros(SKETCH, dtype=torch.float64)
        for number, names in enumerate(bundles(tensors)):
            flat = torch.cat([tensors[name].reshape(-1).float() for name in names])
            if number == len(self._signs):
                generator = torch.Generator(flat.device).manual_seed(self._seed * 100_003 + number)
                drawn = torch.empty(len(flat), dtype=torch.int8, device=flat.device).random_(0, 2, generator=generator)
                self._signs.append(drawn.mul_(2).sub_(1))
            signed = torch.nn.functional.pad(flat.mul_(self._signs[number]), (0, -len(flat) % SKETCH))
            total += signed.view(-1, SKETCH).sum(dim=0, dtype=torch.float64).cpu()
        return total


def _time(
    policy: Policy,
    engine: Engine,
    asked: Sequence[Prompt],
    groups: Sequence[ScoredGroup],
    size: int,
    work: GroupsWork,
    sampling: SamplingParams,
) -> tuple[float, float]:
    """(seconds to sample, seconds to learn): one step with `size` rollouts of each problem."""
    synchronize()
    start = time.perf_counter()
    for _ in engine.generate(make_requests(asked, size, work.seed), sampling, 0):
        pass
    synchronize()
    sample_s = time.perf_counter() - start
    examples = [example for scored in groups for example in _examples(scored, size)]
    start = time.perf_counter()
    # At a rate of 0 the weights stay what they are.
    update_policy(
        policy,
        weigh(examples, "sequence_mean"),
        lambda logprobs, *_: TokenLoss(-logprobs),
        temperature=work.temperature,
        learning_rate=0.0,
        max_tokens=work.microbatch_tokens,
    )
    synchronize()
    return sample_s, time.perf_counter() - start
