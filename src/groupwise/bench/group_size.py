"""Benefit and cost of a larger group: noise of advantage and gradient against G, and the seconds that G costs.

    model, task ─▶ 2 × the largest G rollouts per problem ─▶ a gradient of each ─▶ random groups (group_noise)
                                                        └─▶ seconds to sample and learn from G rollouts per problem

Gradients are of all weights. A sketch of each is kept: its numbers with random signs, summed modulo SKETCH.
Sketches keep inner products up to noise of about 1/sqrt(SKETCH). The policy is not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from groupwise.base.stats import IntervalEstimate, mean
from groupwise.base.text_layout import aligned, percent
from groupwise.bench.engine_speed import timed
from groupwise.bench.group_noise import Noise, bought, common_signal, measure_noise, signal_to_noise, slope
from groupwise.config import ConfigError, OptimizerConfig, VerifierConfig
from groupwise.data.batch import Example, weigh
from groupwise.engines.engine import Engine
from groupwise.evals.evaluate import make_engine, task_options
from groupwise.evals.held_out import draw_scored, make_requests
from groupwise.evals.subject import open_subject
from groupwise.models.chat import Prompts
from groupwise.models.placement import bundles
from groupwise.models.policy import Policy
from groupwise.scoring.scorer import make_scorer
from groupwise.tasks import make_task
from groupwise.training.update import TokenLoss, update_policy
from groupwise.types import Prompt, SamplingParams, ScoredGroup

SKETCH = 8192
Sketch = Callable[[Mapping[str, Tensor]], Tensor]
COLUMNS = "G", "no signal", "var advantage", "var gradient", "signal/noise", "of a step", "sample s", "learn s", "per s"
RULES = ("group_mean_std", "group_mean")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsWork:
    model: str
    """A model or run, given as for `groupwise eval`."""
    task: str
    options: tuple[str, ...] = ()
    problems: int = 16
    sizes: tuple[int, ...] = (4, 8, 16, 32, 64)
    temperature: float = 1.0
    max_new_tokens: int = 256
    microbatch_tokens: int = 16384
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.sizes) < 2 or len(set(self.sizes)) < len(self.sizes):
            raise ConfigError(f"--sizes {','.join(map(str, self.sizes))}: give at least two different sizes")


@dataclass(frozen=True, slots=True)
class SizeFigures:
    size: int
    dead_share: float
    advantage_variance: dict[str, float]
    """By advantage rule, like all mappings below."""
    gradient_variance: dict[str, float]
    signal_to_noise: dict[str, float]
    """Squared length of a problem's gradient / variance of its groups around it."""
    signal_to_noise_interval: dict[str, tuple[float, float]]
    """95 % interval over problems."""
    bought: dict[str, IntervalEstimate]
    """Signal to noise / that of the next smaller size; empty for the smallest."""
    step_signal_to_noise: dict[str, IntervalEstimate]
    """Signal to noise for one problem in a step, with an interval over problems; P problems have P times as much.

    The signal is the gradient that problems have in common. The noise is that of groups, and how much problems differ,
    which no group size reduces.
    """
    sample_s: float
    learn_s: float
    """Seconds for a step with this many rollouts per problem; so is `sample_s`."""
    step_signal_to_noise_per_s: dict[str, float]
    """Signal to noise of all problems / seconds: the largest value makes the best use of time."""


@dataclass(frozen=True, slots=True)
class GroupsResult:
    model: str
    task: str
    device: str
    num_problems: int
    num_left_out: int
    """Problems left out because scoring a rollout failed."""
    pass_at_1: float
    mean_tokens: float
    sizes: tuple[SizeFigures, ...]
    slopes: dict[str, dict[str, IntervalEstimate]]
    """By rule, for advantage and gradient: slope of log variance against log G; −1 means 1/G."""

    def __str__(self) -> str:
        rule = RULES[0]
        rows = [COLUMNS]
        for one in self.sizes:
            noise = f"{one.advantage_variance[rule]:.4f}", f"{one.gradient_variance[rule]:.4g}"
            ratios = f"{one.signal_to_noise[rule]:.4f}", f"{one.step_signal_to_noise[rule].value:.4f}"
            seconds = f"{one.sample_s:.2f}", f"{one.learn_s:.2f}"
            per_s = f"{one.step_signal_to_noise_per_s[rule]:.4g}"
            rows.append((str(one.size), percent(one.dead_share), *noise, *ratios, *seconds, per_s))
        lines = [
            f"{self.model} on {self.task}, {self.device}: {self.num_problems} problems, "
            f"pass@1 {percent(self.pass_at_1)}, {self.mean_tokens:.0f} tokens per completion",
            *aligned(rows),
        ]
        for name in RULES:
            for kind, found in self.slopes[name].items():
                lines.append(f"{name}, {kind} variance: G^{_with_interval(found)}")
            for smaller, one in pairwise(self.sizes):
                said = f"signal to noise × {_with_interval(one.bought[name])}"
                if not smaller.signal_to_noise_interval[name][0] > 0:
                    said = f"unknown: at {smaller.size} the signal is statistically indistinguishable from 0"
                lines.append(f"{name}, {smaller.size} to {one.size}: {said}")
        return "\n".join(lines)


def _with_interval(found: IntervalEstimate) -> str:
    return f"{found.value:.2f} (95 % interval {found.low:.2f} to {found.high:.2f})"


def bench_groups(work: GroupsWork) -> GroupsResult:
    subject = open_subject(work.model)
    policy, engine = subject.policy, make_engine(subject)
    task = make_task(work.task, task_options(work.task, [work.task], work.options, subject.recipe))
    asked = Prompts(policy.tokenizer).of(task.problems("train")[: work.problems])
    sampling = SamplingParams(max_new_tokens=work.max_new_tokens, temperature=work.temperature)
    scorer = make_scorer(task, VerifierConfig())
    try:
        drawn = list(draw_scored(engine, scorer, make_requests(asked, 2 * max(work.sizes), work.seed), sampling))
    finally:
        scorer.close()
    groups = [scored for scored in drawn if not any(score.is_error for score in scored.scores)]
    if len(groups) < 2:
        raise ConfigError(f"--task {work.task}: {len(groups)} of {len(drawn)} problems could be scored; 2 are needed")
    rewards = torch.tensor([[score.reward for score in scored.scores] for scored in groups], dtype=torch.float64)
    if not (rewards != rewards[:, :1]).any():
        raise ConfigError(
            f"--task {work.task}: the rollouts of each problem all have the same reward (pass@1 "
            f"{percent(_pass_rate(groups))}), so there is no advantage to measure; use a model that solves some of them"
        )
    # A stage keeps gradient sums at fixed addresses, so passes over thousands of single rollouts can be recorded. Whole
    # steps run first, so that running out of memory shows before the long part.
    policy.begin_stage(OptimizerConfig(), keep_reference=False)
    sizes = sorted(work.sizes)
    for size in reversed(sizes):  # warm-up: packs of new sizes are recorded
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


def _in_step(noise: Noise) -> IntervalEstimate:
    common, low, high = common_signal(noise.gradients)
    # Variance of groups around their problem's gradient, plus that of problems around the common gradient.
    variance = float(noise.gradient_variance.mean()) + float(noise.signal.mean()) - common
    if not variance > 0:
        return IntervalEstimate(0.0, 0.0, 0.0)
    return IntervalEstimate(common / variance, low / variance, high / variance)


def _pass_rate(groups: Sequence[ScoredGroup]) -> float:
    return mean([scored.pass_rate or 0.0 for scored in groups])


def _gradients(policy: Policy, scored: ScoredGroup, work: GroupsWork, sketch: Sketch) -> Iterator[Tensor]:
    """Yield the sketch of each rollout's gradient: that of the mean logprob of its tokens."""
    for rollout in scored.group.rollouts:
        policy.optimizer.begin_gradients()
        if rollout.token_ids:
            example = Example(scored.group.prompt.token_ids, rollout.token_ids)
            with policy.training():
                (microbatch,) = policy.microbatches([example], [1.0], work.microbatch_tokens)
                logprobs, *_ = policy.logprobs(microbatch, work.temperature)
                policy.backward(logprobs.mean())
        yield sketch(policy.optimizer.gradients())
        policy.optimizer.clear_gradients()


class Sketcher:
    """Sketches of tensors: [SKETCH] numbers on the CPU that keep inner products up to noise.

    The tensors must have the same shapes each time: signs are sampled once.
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
    """Return the seconds to sample and the seconds to learn, for one step with `size` rollouts per problem."""
    sample_s, _ = timed(lambda: list(engine.generate(make_requests(asked, size, work.seed), sampling, 0)))
    examples = [
        Example(scored.group.prompt.token_ids, rollout.token_ids)
        for scored in groups
        for rollout in scored.group.rollouts[:size]
        if rollout.token_ids
    ]
    learn_s, _ = timed(
        lambda: update_policy(
            policy,
            weigh(examples, "sequence_mean"),
            lambda measured, _: TokenLoss(-measured.logprobs),
            temperature=work.temperature,
            learning_rate=0.0,  # leaves the weights unchanged
            max_tokens=work.microbatch_tokens,
        )
    )
    return sample_s, learn_s
