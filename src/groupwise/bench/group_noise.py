"""Noise of advantages and gradients at a group size, from more rollouts of each problem than a group has.

Shapes: P problems, N rollouts of each, G in a group, D numbers that represent a gradient.

The rollouts of a problem are independent, so groups that share none are independent as well. The difference between two
such groups is an unbiased estimate of the variance of a group's gradient; N must be at least 2 G. Problems are
independent too: what the gradients of two problems have in common is what a step should follow. Nothing here runs a
model.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from groupwise.algo.advantages import GROUP_RULES
from groupwise.base.stats import IntervalEstimate, student_quantile

DEALS = 64
"""Number of random partitions of a problem's rollouts into groups; more would reuse the same rollouts."""
BOOTSTRAP_DRAWS = 1000


@dataclass(frozen=True, slots=True)
class Noise:
    """Noise at one group size. All tensors but the last are [P]."""

    size: int
    advantage_variance: Tensor
    """Variance of a rollout's advantage over random groups, averaged over rollouts."""
    gradient_variance: Tensor
    """Variance of a group's gradient, summed over its D numbers."""
    signal: Tensor
    """Squared length of the gradient that groups have in common. The estimate may be below 0 if there is none."""
    dead_share: Tensor
    """Share of groups whose rewards are all equal."""
    gradients: Tensor
    """[P, D]: the gradient of a group, averaged over all groups."""


def measure_noise(rewards_PN: Tensor, gradients_PND: Tensor, size: int, rule: str, seed: int = 0) -> Noise:
    """Measure the noise of groups of `size`. `gradients_PND`: the gradient of each rollout, or a sketch of it."""
    num_rollouts = rewards_PN.shape[1]
    if not 2 <= size <= num_rollouts // 2:
        raise ValueError(f"groups of {size} need at least {max(2 * size, 4)} rollouts per problem, not {num_rollouts}")
    found = [
        _measure_problem(rewards_N.double(), gradients_ND.double(), size, rule, seed)
        for rewards_N, gradients_ND in zip(rewards_PN, gradients_PND, strict=True)
    ]
    advantage, variance, signal, dead = torch.tensor([row for row, _ in found], dtype=torch.float64).unbind(dim=1)
    return Noise(size, advantage, variance, signal, dead, torch.stack([gradient_D for _, gradient_D in found]))


def common_signal(gradients_PD: Tensor) -> IntervalEstimate:
    """Return the squared length of the gradient that problems have in common.

    Two problems share no rollout, so the mean of their inner products is unbiased; it can be below 0 when nothing is in
    common. The interval is the jackknife's over problems, NaN below three problems.
    """
    num_problems = len(gradients_PD)
    products_PP = (gradients_PD @ gradients_PD.T).fill_diagonal_(0.0)
    total = products_PP.sum()
    whole = float(total) / (num_problems * (num_problems - 1))
    if num_problems < 3:
        return IntervalEstimate(whole, math.nan, math.nan)
    without_P = (total - 2 * products_PP.sum(dim=1)) / ((num_problems - 1) * (num_problems - 2))
    spread = math.sqrt((num_problems - 1) * float(without_P.var(correction=0)))
    half = student_quantile(0.975, num_problems - 1) * spread
    return IntervalEstimate(whole, whole - half, whole + half)


def _measure_problem(
    rewards_N: Tensor, gradients_ND: Tensor, size: int, rule: str, seed: int
) -> tuple[tuple[float, float, float, float], Tensor]:
    """Return the numbers of `Noise` for one problem, and its mean gradient."""
    generator = torch.Generator().manual_seed(seed)
    num_rollouts = len(rewards_N)
    num_groups = num_rollouts // size
    products_NN = gradients_ND @ gradients_ND.T
    advantage, variance, signal, dead = 0.0, 0.0, 0.0, 0.0
    mean_weights = torch.zeros(num_rollouts, dtype=torch.float64)
    for _ in range(DEALS):
        order = torch.randperm(num_rollouts, generator=generator)
        groups = [order[start : start + size] for start in range(0, num_groups * size, size)]
        rewards = [rewards_N[group] for group in groups]
        # Row g has what each rollout weighs in the gradient of group g: A / G.
        weights = torch.zeros(num_groups, num_rollouts, dtype=torch.float64)
        for row, (group, values) in enumerate(zip(groups, GROUP_RULES[rule](rewards), strict=True)):
            weights[row, group] = values / size
        mean_weights += weights.mean(dim=0) / DEALS
        inner = weights @ products_NN @ weights.T
        own, all_pairs = inner.diagonal().sum().item(), inner.sum().item()
        common = (all_pairs - own) / (num_groups * (num_groups - 1))
        signal += common
        variance += own / num_groups - common
        dead += sum(float(bool((values == values[0]).all())) for values in rewards) / num_groups
        # One rollout in two groups that share nobody else.
        twice = [order[:size], torch.cat([order[:1], order[size : 2 * size - 1]])]
        first, second = GROUP_RULES[rule]([rewards_N[group] for group in twice])
        advantage += float((first[0] - second[0]) ** 2) / 2
    figures = advantage / DEALS, variance / DEALS, signal / DEALS, dead / DEALS
    return figures, mean_weights @ gradients_ND


def slope(noises: Sequence[Noise], name: str, seed: int = 0) -> IntervalEstimate:
    """Fit log variance against log G, with an interval over problems: −1 means 1/G."""
    by_size = [getattr(noise, name).tolist() for noise in noises]
    sizes = [math.log(noise.size) for noise in noises]
    return over_problems(
        lambda chosen: _fitted(sizes, [sum(values[index] for index in chosen) for values in by_size]),
        num_problems=len(by_size[0]),
        seed=seed,
    )


def signal_to_noise(noise: Noise, seed: int = 0) -> IntervalEstimate:
    """Return squared length of a problem's gradient / variance of its groups around it; 0 if nothing varies."""
    return over_problems(_signal_to_noise(noise), num_problems=len(noise.signal), seed=seed)


def bought(smaller: Noise, larger: Noise, seed: int = 0) -> IntervalEstimate:
    """Return signal to noise of `larger` / that of `smaller`, on the same problems; NaN if `smaller` has no signal."""
    below, above = _signal_to_noise(smaller), _signal_to_noise(larger)

    def ratio(chosen: Sequence[int]) -> float:
        divisor = below(chosen)
        return above(chosen) / divisor if divisor > 0 else math.nan

    return over_problems(ratio, num_problems=len(smaller.signal), seed=seed)


def over_problems(statistic: Callable[[Sequence[int]], float], num_problems: int, seed: int) -> IntervalEstimate:
    """Bootstrap a statistic of problem indices. Resamples for which it is not finite are dropped."""
    draw = random.Random(seed)
    drawn = [statistic([draw.randrange(num_problems) for _ in range(num_problems)]) for _ in range(BOOTSTRAP_DRAWS)]
    known = sorted(value for value in drawn if math.isfinite(value))
    whole = statistic(range(num_problems))
    if not known:
        return IntervalEstimate(whole, math.nan, math.nan)
    return IntervalEstimate(whole, known[int(0.025 * len(known))], known[math.ceil(0.975 * len(known)) - 1])


def _signal_to_noise(noise: Noise) -> Callable[[Sequence[int]], float]:
    signal, variance = noise.signal.tolist(), noise.gradient_variance.tolist()

    def of(chosen: Sequence[int]) -> float:
        divisor = math.fsum(variance[index] for index in chosen)
        return math.fsum(signal[index] for index in chosen) / divisor if divisor > 0 else 0.0

    return of


def _fitted(x: Sequence[float], sums: Sequence[float]) -> float:
    """Fit a line by least squares; NaN if a variance is 0 (all groups have zero variance) and has no logarithm."""
    if len(x) < 2 or min(sums) <= 0:
        return math.nan
    y = [math.log(value) for value in sums]
    x_mean, y_mean = math.fsum(x) / len(x), math.fsum(y) / len(y)
    above = math.fsum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True))
    return above / math.fsum((a - x_mean) ** 2 for a in x)
