"""The tiny batch of the preset tests: its numbers, its policy, and the road from scores to a gradient.

    group a:  a0 = tokens 0 1    reward 1        group b:  b0 = tokens 6 7       reward 0
              a1 = token  2      reward 0                  b1 = tokens 8 9 10    reward 1
              a2 = tokens 3 4 5  reward 0.2

Each token id occurs once, so a policy is a table of 11 logprobs, and the gradient is one number per token. The road is
the real one: make_batch (assign_advantages, penalties), choose_examples (weigh), policy_loss, update_policy.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from groupwise.config import RlStage, make_recipe
from groupwise.data.batch import Example, Microbatch, make_microbatches
from groupwise.distributed.world import World
from groupwise.models.policy import Measured
from groupwise.scoring.credit import shape_group
from groupwise.training.collect import Collected
from groupwise.training.grpo import choose_examples, make_batch
from groupwise.training.policy_loss import policy_loss
from groupwise.training.update import update_policy
from groupwise.types import Finish, Group, Message, Problem, Prompt, Rollout, Score, UpdateStats, Verdict

A0, A1, A2, B0, B1 = COMPLETIONS = ((0, 1), (2,), (3, 4, 5), (6, 7), (8, 9, 10))
LENGTH = [2, 2, 1, 3, 3, 3, 2, 2, 3, 3, 3]
"""Length of the completion that each token belongs to."""
OLD = [-1.0, -0.5, -2.0, -1.5, -3.0, -0.7, -0.3, -1.2, -0.9, -1.1, -0.4]
RATIO = [1.5, 0.5, 0.5, 1.5, 6.0, 1.0, 0.9, 1.25, 1.1, 1.25, 0.7]
"""π / π_old. With a clip of 0.2: tokens 0 and 9 are clipped high (A > 0), token 2 low (A < 0); 1, 3, 4, 7 and 10 are
out of range on the side where the minimum takes the unclipped term."""
GAP = [0.1, -0.2, 0.3, 0.0, 0.2, -0.1, 0.4, -0.3, 0.15, 0.2, -0.25]
"""log π_old − log π_ref"""
ENGINE = [1.0, 2.5, 0.4, 1.2, 0.8, 3.0, 0.6, 1.9, 1.1, 0.9, 0.3]
"""π_old / π_engine"""

ENTROPY = [1.0, 0.2, 0.9, 0.1, 1.5, 0.3, 0.8, 0.05, 1.2, 0.4, 0.7]

NOW = [old + math.log(ratio) for old, ratio in zip(OLD, RATIO, strict=True)]
REF = [old - gap for old, gap in zip(OLD, GAP, strict=True)]
ROLLOUT = [old - math.log(weight) for old, weight in zip(OLD, ENGINE, strict=True)]
KL_NOW = [math.log(ratio) + gap for ratio, gap in zip(RATIO, GAP, strict=True)]
"""d = log π − log π_ref"""
EPSILON = 1e-6
"""Added to each standard deviation."""

# Group a: mean 0.4, deviations 0.6 −0.4 −0.2, std √((0.36 + 0.16 + 0.04) / 3). Group b: mean 0.5, deviations ±0.5.
STD_A = math.sqrt(0.56 / 3) + EPSILON
Z0, Z1, Z2, ZB = 0.6 / STD_A, -0.4 / STD_A, -0.2 / STD_A, 0.5 / (0.5 + EPSILON)


class TablePolicy:
    """A policy whose logprobs are the table above."""

    device = torch.device("cpu")
    world = World()

    def __init__(self) -> None:
        self.table = nn.Parameter(torch.tensor(NOW))
        self.entropies = nn.Parameter(torch.tensor(ENTROPY))
        self.gradient: list[float] = []
        self.entropy_gradient: list[float] | None = None
        self.optimizer = self

    def microbatches(self, examples: list[Example], token_weights: list[float], max_tokens: int) -> list[Microbatch]:
        return make_microbatches(examples, token_weights, max_tokens, self.device)

    def logprobs(self, microbatch: Microbatch, temperature: float) -> Measured:
        return Measured(self.table[microbatch.completion_ids], self.entropies[microbatch.completion_ids])

    def measure(self, examples: list[Example], temperature: float, max_tokens: int) -> list[tuple[Tensor, Tensor]]:
        tables = torch.tensor(OLD), torch.tensor(ENTROPY)
        return [(tables[0][list(one.completion_ids)], tables[1][list(one.completion_ids)]) for one in examples]

    def old_logprobs(self, examples: list[Example], temperature: float, max_tokens: int) -> list[Tensor]:
        return [torch.tensor([OLD[token] for token in example.completion_ids]) for example in examples]

    def ref_logprobs(self, examples: list[Example], temperature: float, max_tokens: int) -> list[Tensor]:
        return [torch.tensor([REF[token] for token in example.completion_ids]) for example in examples]

    def training(self) -> AbstractContextManager[None]:
        return nullcontext()

    def begin_gradients(self) -> None:
        self.table.grad = self.entropies.grad = None

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def step(self, learning_rate: float) -> tuple[float, bool]:
        assert self.table.grad is not None
        self.gradient = self.table.grad.tolist()
        self.entropy_gradient = None if self.entropies.grad is None else self.entropies.grad.tolist()
        return float(self.table.grad.norm()), True


def make_stage(algorithm: str, **keys: Any) -> RlStage:
    table = {"steps": 10, "problems_per_step": 2, "rollouts_per_problem": 3, "sampling": {"max_new_tokens": 10}} | keys
    recipe = {
        "name": "golden",
        "model": {"path": "tiny-qwen3"},
        "task": {"name": "countdown"},
        "stages": [{"algorithm": algorithm, **table}],
    }
    stage = make_recipe(recipe).stages[0]
    assert isinstance(stage, RlStage)
    return stage


def plain(*rewards: float | None) -> list[Score]:
    """None is an error of the verifier."""
    return [
        Score(0.0, Verdict.ERROR)
        if reward is None
        else Score(reward, Verdict.CORRECT if reward == 1 else Verdict.WRONG)
        for reward in rewards
    ]


REWARDS = (1.0, 0.0, 0.2, 0.0, 1.0)


def learn(
    stage: RlStage,
    scores: list[Score] | None = None,
    *,
    truncated: tuple[int, ...] = (),
    stage_step: int = 0,
    max_tokens: int = 1000,
    policy: Any = None,
) -> tuple[UpdateStats, list[float]]:
    """(the first update of a step, gradient per token). `truncated`: completions that were cut."""
    scores = scores or plain(*REWARDS)
    groups = []
    for name, members in (("a", (0, 1, 2)), ("b", (3, 4))):
        rollouts = tuple(
            Rollout(
                COMPLETIONS[index],
                tuple(ROLLOUT[token] for token in COMPLETIONS[index]),
                f"completion {index}",
                Finish.LENGTH if index in truncated else Finish.STOP,
                0,
            )
            for index in members
        )
        group = Group(Prompt(Problem(name, (Message("user", name),), "1"), (50, 51, 52)[: len(members)]), rollouts)
        limit = stage.sampling.max_new_tokens
        groups.append(shape_group(group, [scores[index] for index in members], stage.reward, stage_step, limit))
    policy = policy or TablePolicy()
    beta = stage.kl.coefficient
    batch = make_batch(policy, stage, Collected(tuple(groups), (), 0, 0.0, 0.0), stage_step, beta)
    update = choose_examples(stage, batch, 0, key=("golden",))
    stats = update_policy(
        policy,
        update,
        policy_loss(stage, beta, stage.entropy.bonus),
        temperature=1.0,
        learning_rate=0.1,
        max_tokens=max_tokens,
    )
    return stats, policy.gradient


def check(
    outcome: tuple[UpdateStats, list[float]], loss: list[float], gradient: list[float], weights: list[float]
) -> None:
    """`loss` and `gradient` are per token; `weights` is what each is multiplied with in the mean."""
    stats, actual = outcome
    assert stats.is_finite
    expected = math.fsum(value * weight for value, weight in zip(loss, weights, strict=True))
    assert stats.loss == pytest.approx(expected, rel=1e-5, abs=1e-7)
    by_hand = [value * weight for value, weight in zip(gradient, weights, strict=True)]
    assert actual == pytest.approx(by_hand, rel=2e-5, abs=1e-7)


SEQUENCE_MEAN = [1 / length / 5 for length in LENGTH]
"""1/N Σ_i 1/|o_i| Σ_t, with N = 5 completions."""
TOKEN_MEAN = [1 / 11] * 11

# −min(ρA, clip(ρ, 0.8, 1.2)A) and its derivative in log π (−ρA where the minimum is the unclipped term, else 0).
CLIPPED = [
    *(-1.2 * Z0, -0.5 * Z0),
    -0.8 * Z1,
    *(-1.5 * Z2, -6 * Z2, -1 * Z2),
    *(0.9 * ZB, 1.25 * ZB),
    *(-1.1 * ZB, -1.2 * ZB, -0.7 * ZB),
]
CLIPPED_GRADIENT = [
    *(0, -0.5 * Z0),
    0,
    *(-1.5 * Z2, -6 * Z2, -1 * Z2),
    *(0.9 * ZB, 1.25 * ZB),
    *(-1.1 * ZB, 0, -0.7 * ZB),
]
