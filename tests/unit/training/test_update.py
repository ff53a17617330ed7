"""One update of a real (tiny) model: its gradient depends on the batch, and not on how the batch is cut or padded."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from groupwise.config import OptimizerConfig, RlStage
from groupwise.data.batch import Example, Microbatch, StepBatch, make_microbatches, weigh
from groupwise.models.load import load_model
from groupwise.models.policy import Measured, Policy
from groupwise.training.grpo import choose_examples
from groupwise.training.policy_loss import policy_loss
from groupwise.training.steering import current_beta, next_beta
from groupwise.training.update import TokenLoss, scheduled_rate, update_policy
from groupwise.types import UpdateStats
from tests.factories import tiny_model, tiny_stage

SIZES = {"num_layers": 2, "num_heads": 4, "num_kv_heads": 2}
Gradient = dict[str, Tensor]


class RecordingPolicy(Policy):
    """Keeps the gradient instead of applying it."""

    gradient: Gradient

    def step(self, learning_rate: float) -> tuple[float, bool]:
        self.gradient = {name: total.clone() for name, total in self.optimizer.gradients().items()}
        self.optimizer.clear_gradients()
        return 0.0, True


@cache
def recording(name: str = "tiny-qwen3") -> RecordingPolicy:
    loaded = load_model(tiny_model(name, **SIZES), seed=2)
    with torch.no_grad():
        for weight in loaded.model.parameters():
            if weight.dim() == 2:
                weight.mul_(5)
    return RecordingPolicy(loaded, ema_decay=0.0)


def make_examples(count: int, seed: int) -> list[Example]:
    """Random completions near the policy: old, engine and reference logprobs are its own with noise."""
    rng = random.Random(seed)
    noise = torch.Generator().manual_seed(seed)
    examples = [
        Example(
            prompt_ids=tuple(rng.randrange(256) for _ in range(rng.randint(1, 9))),
            completion_ids=tuple(rng.randrange(256) for _ in range(rng.randint(1, 12))),
            problem_index=number // 2,
        )
        for number in range(count)
    ]
    logprobs = recording().old_logprobs(examples, 1.0, 10_000)
    return [
        replace(
            example,
            advantages=torch.full_like(row, rng.uniform(-2, 2)),
            old_logprobs=row + 0.2 * torch.randn(len(row), generator=noise),
            rollout_logprobs=row + 0.2 * torch.randn(len(row), generator=noise),
            ref_logprobs=row + 0.5 * torch.randn(len(row), generator=noise),
        )
        for example, row in zip(examples, logprobs, strict=True)
    ]


def gradient_of(stage: RlStage, examples: Sequence[Example], max_tokens: int) -> tuple[UpdateStats, Gradient]:
    policy = recording()
    stats = update_policy(
        policy,
        weigh(examples, stage.loss.weights, constant_length=20),
        policy_loss(stage, beta=stage.kl.coefficient, bonus=stage.entropy.bonus),
        temperature=1.0,
        learning_rate=1e-3,
        max_tokens=max_tokens,
    )
    return stats, policy.gradient


def assert_same(one: tuple[UpdateStats, Gradient], other: tuple[UpdateStats, Gradient]) -> None:
    assert one[1].keys() == other[1].keys()
    scale = max(gradient.abs().max().item() for gradient in one[1].values())
    assert scale > 1e-4, "nothing was learned"
    for name, gradient in one[1].items():
        assert torch.allclose(gradient, other[1][name], rtol=1e-4, atol=1e-5 * scale), name
    assert one[0].loss == pytest.approx(other[0].loss, rel=1e-4, abs=1e-5)
    assert one[0].num_tokens == other[0].num_tokens
    assert dict(one[0].means) == pytest.approx(dict(other[0].means), rel=1e-3, abs=1e-4)


STAGES = [
    tiny_stage("grpo", epochs_per_batch=2, loss={"dual_clip": 3.0, "importance": "truncated"}),
    tiny_stage("dr_grpo", epochs_per_batch=2),
    tiny_stage("dapo", epochs_per_batch=2, loss={"importance": "masked"}),
    tiny_stage("gspo", epochs_per_batch=2),
    tiny_stage("cispo", epochs_per_batch=2),
    tiny_stage("rloo"),
    tiny_stage("reinforce++", epochs_per_batch=2),
    tiny_stage("gr_reinforce"),
    tiny_stage("grpo", epochs_per_batch=2, name="bonus", entropy={"bonus": 0.5}),
]
by_stage = pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)


@by_stage
@pytest.mark.parametrize("max_tokens", [1, 25, 60])
def test_the_gradient_does_not_depend_on_the_microbatches(stage: RlStage, max_tokens: int) -> None:
    examples = make_examples(9, seed=max_tokens)
    assert_same(gradient_of(stage, examples, 10_000), gradient_of(stage, examples, max_tokens))


def test_packs_are_no_larger_than_what_is_recorded() -> None:
    policy = plain_policy()
    examples = make_examples(9, seed=0)
    longest = max(len(one.prompt_ids) + len(one.completion_ids) for one in examples)
    policy._most_tokens = 2 * longest
    sizes = [batch.inputs.shape.numel() for batch in policy.microbatches(examples, [1.0] * 9, 10_000)]
    assert len(sizes) > 1
    assert max(sizes) <= 2 * longest


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    stage=st.sampled_from(STAGES), count=st.integers(1, 8), seed=st.integers(0, 10_000), max_tokens=st.integers(1, 150)
)
def test_nor_on_the_order_of_the_rows(stage: RlStage, count: int, seed: int, max_tokens: int) -> None:
    examples = make_examples(count, seed)
    mixed = random.Random(seed + 1).sample(examples, count)
    whole = gradient_of(stage, examples, 10_000)
    if max(gradient.abs().max().item() for gradient in whole[1].values()) > 1e-3:
        assert_same(whole, gradient_of(stage, mixed, max_tokens))


@pytest.mark.parametrize("rule", ["sequence_mean", "token_mean", "sequence_sum", "constant"])
def test_dead_groups_left_out_are_as_good_as_kept_in(rule: str) -> None:
    stage = tiny_stage("grpo", epochs_per_batch=2, kl={"coefficient": 0.0}, loss={"weights": rule})
    alive, dead = make_examples(6, seed=1), make_examples(5, seed=2)
    zeros = [replace(example, advantages=torch.zeros(len(example.completion_ids))) for example in dead]
    kept = gradient_of(stage, alive + zeros, 10_000)
    left_out = gradient_of(stage, alive + [replace(example, is_learned=False) for example in zeros], 10_000)
    assert kept[0].num_tokens > left_out[0].num_tokens
    assert kept[0].loss == pytest.approx(left_out[0].loss, rel=1e-5)
    scale = max(gradient.abs().max().item() for gradient in kept[1].values())
    for name, gradient in kept[1].items():
        assert torch.allclose(gradient, left_out[1][name], rtol=1e-4, atol=1e-5 * scale), name
    # ... and not as good as never sampled: they are in the denominator.
    assert gradient_of(stage, alive, 10_000)[0].loss != pytest.approx(kept[0].loss, rel=1e-2)


@pytest.mark.parametrize("has_known_head", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_entropy_bonus_has_the_gradient_of_the_models_own_logits(
    has_known_head: bool, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """−log π − 0.7 H by token, mean over all tokens, against autograd through all logits of one row after the other."""
    policy = recording()
    form = policy._find_form()._replace(has_known_head=has_known_head)
    monkeypatch.setattr(policy, "_find_form", lambda: form)
    examples = make_examples(5, seed=11)

    def with_bonus(measured: Measured, microbatch: Microbatch) -> TokenLoss:
        return TokenLoss(-measured.logprobs - 0.7 * measured.entropies, {"policy/entropy_nats": measured.entropies})

    update = weigh(examples, "token_mean")
    stats = update_policy(policy, update, with_bonus, temperature=temperature, learning_rate=1e-3, max_tokens=60)
    found = policy.gradient
    policy.model.zero_grad()
    total = torch.zeros(())
    nats = 0.0
    for example in examples:
        ids = torch.tensor([example.prompt_ids + example.completion_ids])
        log_p = (policy.model(input_ids=ids).logits[0] / temperature).log_softmax(-1)[len(example.prompt_ids) - 1 : -1]
        entropy = -(log_p.exp() * log_p).sum(-1)
        chosen = log_p.gather(1, torch.tensor(example.completion_ids)[:, None])[:, 0]
        total = total - (chosen + 0.7 * entropy).sum()
        nats += entropy.sum().item()
    num_tokens = sum(len(example.completion_ids) for example in examples)
    (total / num_tokens).backward()
    assert stats.loss == pytest.approx(total.item() / num_tokens, rel=1e-5)
    assert stats.means["policy/entropy_nats"] == pytest.approx(nats / num_tokens, rel=1e-5)
    for name, parameter in policy.model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-3, atol=1e-6 * (1 + parameter.grad.abs().max()))
    policy.model.zero_grad()


def test_two_halves_add_up_to_the_whole() -> None:
    """Gradients of two sets of rows under one denominator, by the definition of a sum."""
    stage = tiny_stage("gr_reinforce", loss={"weights": "sequence_sum"})
    examples = make_examples(8, seed=3)
    whole = gradient_of(stage, examples, 50)[1]
    first, second = gradient_of(stage, examples[:5], 50)[1], gradient_of(stage, examples[5:], 50)[1]
    for name, gradient in whole.items():
        assert torch.allclose(8 * gradient, 5 * first[name] + 3 * second[name], rtol=1e-3, atol=1e-4), name


def naive_logprobs(model: Any, example: Example, temperature: float) -> list[float]:
    """One row, no padding, no mask, no positions; log_softmax over the whole vocabulary in float64."""
    ids = torch.tensor([example.prompt_ids + example.completion_ids])
    with torch.no_grad():
        log_p = (model(input_ids=ids).logits[0].double() / temperature).log_softmax(-1)
    start = len(example.prompt_ids)
    return [log_p[start + t - 1, token].item() for t, token in enumerate(example.completion_ids)]


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-llama"])
@pytest.mark.parametrize("max_tokens", [1, 40, 10_000])
def test_padding_does_not_matter(name: str, max_tokens: int) -> None:
    policy = recording(name)
    examples = [Example((5,), (7,)), *make_examples(8, seed=4), Example((1,) * 30, (2,)), Example((1,), (2,) * 30)]
    for temperature in (1.0, 0.6):
        rows = policy.old_logprobs(examples, temperature, max_tokens)
        for example, row in zip(examples, rows, strict=True):
            assert row.tolist() == pytest.approx(naive_logprobs(policy.model, example, temperature), abs=2e-5)
        for microbatch in make_microbatches(examples, [1.0] * len(examples), max_tokens, policy.device):
            logprobs, entropies, _ = policy.logprobs(microbatch, temperature)
            expected = torch.cat([rows[index] for index in microbatch.example_indices])
            assert torch.allclose(logprobs, expected, atol=1e-5)
            assert logprobs.requires_grad
            assert entropies.requires_grad


def test_the_engines_logprobs_are_taken_where_they_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = recording()
    examples = [*make_examples(8, seed=5), Example((1, 2), ())]
    ours = policy.old_logprobs(examples, 0.7, 40)
    drawn = [replace(example, rollout_logprobs=row + 1e-5) for example, row in zip(examples, ours, strict=True)]
    num_scored = 0
    original = Policy.measure

    def counting(self: Policy, chosen: Sequence[Example], *rest: Any) -> list[tuple[Tensor, Tensor]]:
        nonlocal num_scored
        num_scored += len(chosen)
        return original(self, chosen, *rest)

    monkeypatch.setattr(Policy, "measure", counting)
    taken = policy.old_logprobs(drawn, 0.7, 40)
    assert all(row is example.rollout_logprobs for row, example in zip(taken, drawn, strict=True))
    assert 0 < num_scored < len(examples)
    # One token of the longest completions that is off, and none are taken.
    longest = max(range(8), key=lambda index: len(examples[index].prompt_ids) + len(examples[index].completion_ids))
    row = ours[longest].clone()
    row[0] += 0.01
    off = [*drawn[:longest], replace(drawn[longest], rollout_logprobs=row), *drawn[longest + 1 :]]
    for left, right in zip(policy.old_logprobs(off, 0.7, 40), ours, strict=True):
        assert torch.equal(left, right)
    # Nor where nothing would be saved, or nothing is known.
    for whole in (policy.old_logprobs(drawn, 0.7, 10_000), policy.old_logprobs(examples, 0.7, 10_000)):
        for left, right in zip(whole, ours, strict=True):
            assert torch.allclose(left, right, atol=1e-5)
            assert left is not right


def test_completions_without_tokens_have_no_logprobs() -> None:
    rows = recording().old_logprobs([Example((1, 2), ()), Example((1, 2), (3,)), Example((4,), ())], 1.0, 100)
    assert [len(row) for row in rows] == [0, 1, 0]


def loss_of(value: float) -> Any:
    def token_loss(measured: Measured, microbatch: Microbatch) -> TokenLoss:
        return TokenLoss(
            value * measured.logprobs, {"mean": microbatch.completion_ids}, {"max": microbatch.completion_ids}
        )

    return token_loss


def plain_policy(ema_decay: float = 0.0) -> Policy:
    return Policy(load_model(tiny_model(**SIZES), seed=0), ema_decay=ema_decay)


def update(policy: Policy, value: float, examples: Sequence[Example], max_tokens: int = 4) -> UpdateStats:
    return update_policy(
        policy,
        weigh(examples, "token_mean"),
        loss_of(value),
        temperature=1.0,
        learning_rate=0.01,
        max_tokens=max_tokens,
    )


EXAMPLES = [Example((1, 2), (3, 4)), Example((1,), (6,))]


def test_metrics_are_token_means_and_maxima_over_all_microbatches() -> None:
    stats = update(plain_policy(), 1.0, EXAMPLES)
    assert dict(stats.means) == pytest.approx({"mean": 13 / 3, "max": 6.0})
    assert (stats.num_tokens, stats.learning_rate, stats.is_finite) == (3, 0.01, True)
    assert stats.grad_norm > 0


def test_an_update_goes_downhill_and_counts() -> None:
    policy = plain_policy()
    before = torch.cat(policy.old_logprobs(EXAMPLES, 1.0, 100)).sum()
    update(policy, -1.0, EXAMPLES)
    assert torch.cat(policy.old_logprobs(EXAMPLES, 1.0, 100)).sum() > before
    assert policy.version == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_moves_nothing(value: float) -> None:
    policy = plain_policy(ema_decay=0.9)
    update(policy, -1.0, EXAMPLES)
    before = {group: {name: t.clone() for name, t in tensors.items()} for group, tensors in policy.state().items()}
    stats = update(policy, value, EXAMPLES)
    assert not stats.is_finite
    assert policy.version == 1
    after = policy.state()
    assert before.keys() == after.keys()
    for group, tensors in before.items():
        assert all(torch.equal(tensor, after[group][name]) for name, tensor in tensors.items())
    # No remains of the gradient: the next update is that of a policy which never saw the bad one.
    assert update(policy, -1.0, EXAMPLES).is_finite
    twin = plain_policy(ema_decay=0.9)
    update(twin, -1.0, EXAMPLES)
    update(twin, -1.0, EXAMPLES)
    assert all(torch.equal(weight, twin.weights[name]) for name, weight in policy.weights.items())


def test_a_gradient_that_is_not_finite_moves_nothing_though_the_loss_is() -> None:
    """√x at 0: the loss is 0, its slope is infinite."""

    def root(measured: Measured, microbatch: Microbatch) -> TokenLoss:
        return TokenLoss((measured.logprobs - measured.logprobs.detach()).sqrt())

    policy = plain_policy()
    before = {name: weight.clone() for name, weight in policy.weights.items()}
    stats = update_policy(
        policy, weigh(EXAMPLES, "token_mean"), root, temperature=1.0, learning_rate=0.01, max_tokens=100
    )
    assert math.isfinite(stats.loss)
    assert not stats.is_finite
    assert policy.version == 0
    assert all(torch.equal(weight, before[name]) for name, weight in policy.weights.items())


def test_a_loss_that_is_not_finite_moves_nothing_though_its_gradient_is() -> None:
    def shifted(measured: Measured, microbatch: Microbatch) -> TokenLoss:
        return TokenLoss(measured.logprobs + math.inf)

    policy = plain_policy()
    before = {name: weight.clone() for name, weight in policy.weights.items()}
    stats = update_policy(
        policy, weigh(EXAMPLES, "token_mean"), shifted, temperature=1.0, learning_rate=0.01, max_tokens=100
    )
    assert (stats.is_finite, policy.version) == (False, 0)
    assert all(torch.equal(weight, before[name]) for name, weight in policy.weights.items())


def test_an_update_without_examples_is_no_update() -> None:
    policy = plain_policy()
    stats = update(policy, 1.0, [replace(example, is_learned=False) for example in EXAMPLES])
    assert (stats.is_finite, stats.num_tokens, policy.version) == (True, 0, 0)


def test_temperature_reaches_the_logprobs() -> None:
    """The gradient is that of log π at the sampling temperature, as a naive pass computes it."""
    policy = recording()
    example = make_examples(1, seed=6)[0]
    update_policy(
        policy, weigh([example], "sequence_sum"), loss_of(1.0), temperature=0.5, learning_rate=0.0, max_tokens=100
    )
    policy.model.zero_grad()
    ids = torch.tensor([example.prompt_ids + example.completion_ids])
    log_p = (policy.model(input_ids=ids).logits[0] / 0.5).log_softmax(-1)
    places = torch.arange(len(example.completion_ids)) + len(example.prompt_ids) - 1
    log_p[places, torch.tensor(example.completion_ids)].sum().backward()
    scale = max(gradient.abs().max().item() for gradient in policy.gradient.values())
    for name, parameter in policy.model.named_parameters():
        assert torch.allclose(parameter.grad, policy.gradient[name], rtol=1e-4, atol=1e-5 * scale), name
    policy.model.zero_grad()


def test_scheduled_rate_reads_the_config() -> None:
    config = OptimizerConfig(learning_rate=1.0, schedule="linear", warmup_steps=1, final_share=0.5)
    assert [scheduled_rate(config, step, 4) for step in range(4)] == pytest.approx([1.0, 1.0, 0.75, 0.5])


def test_each_epoch_learns_from_each_problem_once_and_deals_anew() -> None:
    stage = tiny_stage("grpo", problems_per_update=2, epochs_per_batch=3)
    examples = [Example((1,), (2, 3), problem_index=index // 2) for index in range(8)]
    batch: Any = StepBatch((None,) * 4, examples, {}, 0)  # type: ignore[arg-type]
    epochs = []
    for epoch in range(3):
        updates = [choose_examples(stage, batch, 2 * epoch + half, key=(0, "grpo", 5)) for half in range(2)]
        dealt = [sorted(example.problem_index for example in update.examples) for update in updates]
        assert sorted(dealt[0] + dealt[1]) == [0, 0, 1, 1, 2, 2, 3, 3]
        assert all(len(update.examples) == 4 and update.denominator == 4 for update in updates)
        epochs.append(tuple(map(tuple, dealt)))
    assert len(set(epochs)) > 1


@pytest.mark.parametrize(
    ("schedule", "expected"), [("constant", 0.4), ("warmup", 0.4 * 3 / 10), ("anneal", 0.4 * 8 / 10), ("target", 0.4)]
)
def test_beta_follows_the_schedule(schedule: str, expected: float) -> None:
    stage = tiny_stage("grpo", kl={"coefficient": 0.4, "schedule": schedule, "schedule_steps": 10})
    position: Any = SimpleNamespace(kl_coefficient=None, stage_step=2)
    assert current_beta(stage, position) == pytest.approx(expected)
    steered = next_beta(stage, 0.4, kl=10.0)
    if schedule != "target":
        assert steered is None
        return
    assert steered == pytest.approx(0.4 * math.exp(1 / 10))
    # Steered: the position remembers. A step without an update says nothing of the KL and leaves it there.
    assert current_beta(stage, SimpleNamespace(kl_coefficient=steered, stage_step=3)) == steered  # type: ignore[arg-type]
    assert next_beta(stage, 0.4, kl=None) == 0.4
