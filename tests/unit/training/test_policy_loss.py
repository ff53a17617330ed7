"""The loss of every surrogate, correction and term, against one loop per token that is written from the formulas.

The slow twin works in float64 on plain lists and Python branches, and shares no code with what it checks. Batches are
random; a batch is cut into microbatches in several ways, which must change nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from groupwise.algo.losses import SURROGATES, kl_estimate
from groupwise.config import RlStage
from groupwise.data.batch import Example, make_microbatches, weigh
from groupwise.models.policy import Measured
from groupwise.training.policy_loss import policy_loss
from groupwise.training.update import TokenLoss
from tests.factories import tiny_stage

LENGTHS = (4, 1, 7, 3, 2, 5)
BETA = 0.3


def make_batch(
    seed: int, spread: float = 0.6, has_token_advantages: bool = False, has_choices: bool = False
) -> tuple[Tensor, list[Example]]:
    """(table of logprobs now, one token id for each; examples whose old, engine and reference logprobs are near it)."""
    dice = torch.Generator().manual_seed(seed)
    now = -0.05 - 3 * torch.rand(sum(LENGTHS), generator=dice)
    choices = (torch.rand(2, len(now), generator=torch.Generator().manual_seed(seed)) < 0.6).float()
    old, engine, ref = (now + spread * torch.randn(len(now), generator=dice) for _ in range(3))
    examples, start = [], 0
    for index, length in enumerate(LENGTHS):
        part = slice(start, start + length)
        own = torch.randn(length if has_token_advantages else 1, generator=dice).expand(length)
        examples.append(
            Example(
                prompt_ids=(100,) * (1 + index % 3),
                completion_ids=tuple(range(start, start + length)),
                problem_index=index,
                advantages=own,
                old_logprobs=old[part],
                rollout_logprobs=engine[part],
                ref_logprobs=ref[part],
                learned_tokens=choices[0][part] if has_choices else None,
                pulled_tokens=choices[1][part] if has_choices else None,
            )
        )
        start += length
    return now, examples


def fast(stage: RlStage, now: Tensor, examples: list[Example], max_tokens: int) -> tuple[float, list[float], Tensor]:
    """(loss, gradient by token, share of tokens whose gradient a clip removed)."""
    table = now.clone().requires_grad_()
    update = weigh(examples, stage.loss.weights)
    total, clipped = 0.0, torch.zeros(len(now))
    for batch in make_microbatches(update.examples, update.token_weights, max_tokens, torch.device("cpu")):
        logprobs = table[batch.completion_ids]
        terms: TokenLoss = policy_loss(stage, BETA, stage.entropy.bonus)(Measured(logprobs, logprobs.square()), batch)
        loss = (terms.loss * batch.weights).sum() / update.denominator
        loss.backward()
        total += loss.item()
        clipped[batch.completion_ids] = terms.means["policy/clip_share"].float()
    assert table.grad is not None
    return total, table.grad.tolist(), clipped


def slow(stage: RlStage, now: Tensor, examples: list[Example]) -> tuple[float, list[float]]:
    table = now.double().requires_grad_()
    update = weigh(examples, stage.loss.weights)
    losses = []
    for example, weight in zip(update.examples, update.token_weights, strict=True):
        assert example.advantages is not None
        assert example.old_logprobs is not None
        assert example.rollout_logprobs is not None
        assert example.ref_logprobs is not None
        completion = Completion(
            [table[token] for token in example.completion_ids],
            example.old_logprobs.tolist(),
            example.rollout_logprobs.tolist(),
            example.advantages.tolist(),
        )
        for place, ref in enumerate(example.ref_logprobs.tolist()):
            is_learned, is_pulled = (
                1.0 if chosen is None else chosen[place].item()
                for chosen in (example.learned_tokens, example.pulled_tokens)
            )
            surrogate = completion.surrogate(place, stage) * completion.weight(place, stage) * is_learned
            losses.append(weight * (surrogate + completion.other_terms(place, ref, stage, is_pulled)))
    total = sum(losses, torch.zeros((), dtype=torch.float64)) / update.denominator
    total.backward()
    assert table.grad is not None
    return total.item(), table.grad.tolist()


class Completion:
    def __init__(self, now: list[Tensor], old: list[float], engine: list[float], advantages: list[float]) -> None:
        self.now, self.old, self.engine, self.advantages = now, old, engine, advantages

    def surrogate(self, place: int, stage: RlStage) -> Tensor:
        loss, a = stage.loss, self.advantages[place]
        log_ratios = [now - old for now, old in zip(self.now, self.old, strict=True)]
        ratio = torch.exp(log_ratios[place])
        if loss.surrogate == "policy_gradient":
            return -a * self.now[place]
        if loss.surrogate == "cispo":
            weight = min(max(ratio.item(), 1 - loss.clip_low), 1 + loss.clip_high)
            return -weight * a * self.now[place]
        if loss.surrogate == "soft_gate":
            tau = loss.gate_positive if a > 0 else loss.gate_negative
            return -a * 4 / tau / (1 + torch.exp(-tau * (ratio - 1)))
        if loss.surrogate == "probability_masked":
            difference = torch.exp(self.now[place]).item() - math.exp(self.old[place])
            if (a > 0 and difference > loss.clip_high) or (a < 0 and difference < -loss.clip_low):
                return 0 * ratio
            return -a * ratio
        if loss.surrogate == "geometric_mean":
            product_ = torch.ones((), dtype=torch.float64)
            for log_ratio, own in zip(log_ratios, self.advantages, strict=True):
                if own > 0:
                    product_ = product_ * torch.exp(torch.clamp(log_ratio, max=loss.clip_high))
                else:
                    product_ = product_ * torch.exp(torch.clamp(log_ratio, min=-loss.clip_low))
            return -a * product_ ** (1 / len(log_ratios))
        if loss.surrogate == "sequence_clipped":
            ratio = torch.exp(sum(log_ratios, torch.zeros((), dtype=torch.float64)) / len(log_ratios))
        bounded = torch.clamp(ratio, 1 - loss.clip_low, 1 + loss.clip_high)
        value = torch.minimum(ratio * a, bounded * a)
        if a < 0 and loss.dual_clip * a > value.item():
            return torch.tensor(-loss.dual_clip * a)
        return -value

    def weight(self, place: int, stage: RlStage) -> float:
        loss, count = stage.loss, len(self.now)
        ratios = [math.exp(old - engine) for old, engine in zip(self.old, self.engine, strict=True)]
        ratio = {
            "token": ratios[place],
            "sequence": math.prod(ratios),
            "geometric": math.prod(ratios) ** (1 / count),
        }[loss.importance_level]
        floor = loss.importance_floor if loss.importance_floor > 0 else 1 / loss.importance_cap
        is_inside = floor <= ratio <= loss.importance_cap
        weight = {
            "none": 1.0,
            "truncated": min(ratio, loss.importance_cap),
            "masked": ratio if is_inside else 0.0,
            "rejected": 1.0 if is_inside else 0.0,
        }[loss.importance]
        drift = sum(engine - now.item() for now, engine in zip(self.now, self.engine, strict=True)) / count
        return 0.0 if self.advantages[place] < 0 and drift > loss.off_policy_mask else weight

    def other_terms(self, place: int, ref: float, stage: RlStage, is_pulled: float) -> Tensor:
        """Pull, KL and bonus. Where a real policy has the entropy, here is the square of the logprob."""
        now, old = self.now[place], self.old[place]
        d = now - ref
        kl = {"k1": d, "k2": d * d / 2, "k3": torch.exp(-d) - 1 + d}[stage.kl.estimator]
        if stage.kl.unbiased:
            kl = torch.exp(now - old) * kl
        return stage.loss.pull * is_pulled * (now - old) ** 2 - stage.entropy.bonus * now**2 + BETA * kl


def changed(
    stage: RlStage, *, estimator: str = "k3", unbiased: bool = False, bonus: float = 0.0, **loss: Any
) -> RlStage:
    return replace(
        stage,
        loss=replace(stage.loss, **loss),
        kl=replace(stage.kl, estimator=estimator, unbiased=unbiased),
        entropy=replace(stage.entropy, bonus=bonus),
    )


CORRECTIONS = [
    {"importance": "none"},
    *(
        {"importance": mode, "importance_level": level, "importance_cap": 2.0, "importance_floor": floor}
        for mode, level in product(["truncated", "masked", "rejected"], ["token", "sequence", "geometric"])
        for floor in ([0.0] if mode == "truncated" else [0.0, 0.7])
    ),
]


@pytest.mark.parametrize("surrogate", sorted(SURROGATES))
@pytest.mark.parametrize("unbiased", [False, True])
def test_every_combination_has_the_loss_and_the_gradient_of_the_formulas(surrogate: str, unbiased: bool) -> None:
    stage = tiny_stage("grpo", kl={"coefficient": BETA})
    choices = product(CORRECTIONS, [0.0, 0.4], [math.inf, 0.2], ["sequence_mean", "token_mean"])
    for seed, (correction, pull, mask, weights) in enumerate(choices):
        one = changed(
            stage,
            estimator=("k1", "k2", "k3")[seed % 3],
            unbiased=unbiased,
            bonus=(0.0, 0.2)[seed % 2],
            surrogate=surrogate,
            pull=pull,
            off_policy_mask=mask,
            weights=weights,
            clip_low=0.1,
            clip_high=0.15,
            dual_clip=(math.inf, 1.2)[seed % 2],
            gate_positive=1.5,
            gate_negative=2.5,
            **correction,
        )
        now, examples = make_batch(seed, has_token_advantages=seed % 5 == 4, has_choices=seed % 3 == 1)
        loss, gradient = slow(one, now, examples)
        for max_tokens in (1, 20, 10_000):
            found = fast(one, now, examples, max_tokens)
            assert found[0] == pytest.approx(loss, rel=1e-4, abs=1e-5), one
            assert found[1] == pytest.approx(gradient, rel=1e-3, abs=1e-5), one


@pytest.mark.parametrize("surrogate", sorted(SURROGATES))
def test_on_policy_every_surrogate_has_the_policy_gradient_of_its_completion(surrogate: str) -> None:
    """All advantages of a completion are equal, so that a ratio per completion makes no difference."""
    now, examples = make_batch(1, spread=0.0)
    stage = changed(tiny_stage("dapo"), surrogate=surrogate, weights="sequence_mean", pull=0.5)
    by_hand = [
        -float(example.advantages[0]) / length / len(examples)
        for example, length in zip(examples, LENGTHS, strict=True)
        if example.advantages is not None
        for _ in range(length)
    ]
    assert fast(replace(stage, kl=replace(stage.kl, place="reward")), now, examples, 20)[1] == pytest.approx(by_hand)


@pytest.mark.parametrize("surrogate", ["clipped", "sequence_clipped", "probability_masked", "geometric_mean"])
def test_tokens_that_are_reported_as_clipped_are_those_without_a_gradient(surrogate: str) -> None:
    stage = changed(tiny_stage("dapo"), surrogate=surrogate, clip_low=0.1, clip_high=0.1)
    stage = replace(stage, kl=replace(stage.kl, place="reward"))
    now, examples = make_batch(2)
    _, gradient, is_clipped = fast(stage, now, examples, 10_000)
    assert 0 < is_clipped.sum() < len(now)
    assert [value == 0 for value in gradient] == is_clipped.bool().tolist()


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_the_unbiased_estimators_have_the_gradient_of_the_kl(estimator: str) -> None:
    """Σ_a π_old(a) · ∂(π/π_old · k)(a) = ∂KL(π ‖ π_ref), over a whole vocabulary; without the ratio it is another."""
    dice = torch.Generator().manual_seed(0)
    logits, old, ref = torch.randn(3, 12, generator=dice, dtype=torch.float64).unbind()
    old, ref = old.log_softmax(0), ref.log_softmax(0)

    def gradient(is_unbiased: bool | None) -> Tensor:
        leaf = logits.clone().requires_grad_()
        now = leaf.log_softmax(0)
        if is_unbiased is None:
            loss = (now.exp() * (now - ref)).sum()
        else:
            kl = kl_estimate(estimator, now, ref) * ((now - old).exp() if is_unbiased else 1)
            loss = (old.exp() * kl).sum()
        return torch.autograd.grad(loss, leaf)[0]

    torch.testing.assert_close(gradient(True), gradient(None))
    assert not torch.allclose(gradient(False), gradient(None), atol=1e-2)


def test_with_one_update_the_ratio_of_an_unbiased_kl_is_1_and_its_gradient_counts() -> None:
    now, examples = make_batch(4)
    examples = [replace(one, old_logprobs=None, advantages=torch.zeros(len(one.completion_ids))) for one in examples]
    stage = changed(tiny_stage("dapo", kl={"coefficient": BETA}), unbiased=True)
    loss, gradient, _ = fast(stage, now, examples, 10_000)
    d = [
        value.item()
        for value in now - torch.cat([one.ref_logprobs for one in examples if one.ref_logprobs is not None])
    ]
    k3 = [math.exp(-value) - 1 + value for value in d]
    assert loss == pytest.approx(BETA * math.fsum(k3) / len(now), rel=1e-5)
    by_hand = [BETA * (k + 1 - math.exp(-value)) / len(now) for k, value in zip(k3, d, strict=True)]
    assert gradient == pytest.approx(by_hand, rel=1e-4, abs=1e-7)
