"""The load-balancing loss of routers, against transformers' own and against all tokens of one row after the other."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from groupwise.algo.completions import Completions
from groupwise.algo.losses import router_imbalance
from groupwise.config import LoraConfig, OptimizerConfig, RlStage
from groupwise.config.build import ConfigError
from groupwise.data.batch import Example, Microbatch, weigh
from groupwise.data.pack import Pack
from groupwise.models.load import LoadedModel, recompute_activations
from groupwise.models.lora import add_lora
from groupwise.models.policy import Measured, Policy
from groupwise.models.routers import Routers, check_routers
from groupwise.models.tiny import make_tokenizer
from groupwise.training.policy_loss import policy_loss
from groupwise.training.update import TokenLoss, update_policy
from groupwise.types import UpdateStats
from tests.factories import tiny_stage
from tests.families import NAMES, make_tiny_family
from tests.family_table import EXAMPLES, ids

CPU = torch.device("cpu")
BALANCED = {
    "deepseek_v4", "ernie4_5_moe", "flex_olmo", "flint", "gpt_oss", "granitemoe", "granitemoe_swa", "granitemoehybrid",
    "granitemoeshared", "jamba", "laguna", "llama4_text", "mellum", "minimax", "minimax_m2", "minimax_m3_vl_text",
    "mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_5_moe_text", "qwen3_moe", "qwen3_next",
}  # fmt: skip
"""Families with routers that transformers balances; doge has the key, and routers that cannot be read."""
if transformers.__version__.startswith("5.17."):  # It does not show the logits of these.
    BALANCED -= {"granitemoe", "granitemoe_swa", "granitemoehybrid", "granitemoeshared", "llama4_text"}


class Recording(Policy):
    gradient: dict[str, Tensor]

    def step(self, learning_rate: float) -> tuple[float, bool]:
        self.gradient = {name: total.clone() for name, total in self.optimizer.gradients().items()}
        self.optimizer.clear_gradients()
        return 0.0, True


def policy_of(name: str, model: Any = None) -> Recording:
    model = make_tiny_family(name) if model is None else model
    policy = Recording(LoadedModel(model, make_tokenizer(), 64, CPU, torch.float32), ema_decay=0.0)
    policy.begin_stage(OptimizerConfig(), keep_reference=False, balance_routers=True)
    return policy


def only_imbalance(measured: Measured, microbatch: Microbatch) -> TokenLoss:
    assert measured.imbalance is not None
    return TokenLoss(measured.imbalance, {"imbalance": measured.imbalance})


def balance(policy: Policy, max_tokens: int = 4096) -> UpdateStats:
    update = weigh(EXAMPLES, "sequence_mean")
    return update_policy(policy, update, only_imbalance, temperature=1.0, learning_rate=1e-2, max_tokens=max_tokens)


def layer_loss(logits: Tensor, num_chosen: int) -> Tensor:
    """E · Σ f P of one layer and one sequence [T, E], expert by expert."""
    p = logits.softmax(-1)
    chosen = p.topk(num_chosen).indices
    num_experts = logits.shape[1]
    shares = [(chosen == expert).sum() / len(logits) for expert in range(num_experts)]
    total: Any = num_experts * sum(shares[expert] * p[:, expert].mean() for expert in range(num_experts))
    return total


def slow_loss(model: Any, example: Example) -> Tensor:
    """The mean over layers, from a pass over the sequence alone."""
    whole = torch.tensor([[*example.prompt_ids, *example.completion_ids]])
    logits = model.get_decoder()(input_ids=whole, use_cache=False, output_router_logits=True).router_logits
    rows = [layer[len(example.prompt_ids) - 1 : -1] for layer in logits]
    return torch.stack([layer_loss(row, model.config.num_experts_per_tok) for row in rows]).mean()


def test_by_hand() -> None:
    """Two completions, of two tokens and of one; two experts, one chosen per token; probabilities 3/4 and 1/4."""
    logits = torch.tensor([[3.0, 1.0], [1.0, 3.0], [1.0, 3.0]]).log()
    completions = Completions(torch.tensor([0, 0, 1]), (2, 1))
    # Each expert is chosen by half of the first completion, so 2 · (½ p₁ + ½ p₂) = 1; the second has 2 · 1 · ¾.
    assert router_imbalance(logits, 1, completions).tolist() == pytest.approx([1.0, 1.0, 1.5])


@pytest.mark.parametrize("name", sorted(BALANCED & set(NAMES)))
def test_it_is_transformers_loss_for_one_layer_and_one_completion(name: str) -> None:
    model = make_tiny_family(name)
    routers = Routers(model)
    with torch.no_grad(), routers.noting() as noted:
        model(input_ids=torch.tensor([ids(9, 0)]), use_cache=False)
    check_routers(model, "the key")
    theirs = getattr(sys.modules[type(model).__module__], "load_balancing_loss_func", None)
    completions = Completions(torch.zeros(9, dtype=torch.long), (9,))
    assert noted
    for logits in noted:
        ours = router_imbalance(logits, routers.num_chosen, completions).mean()
        torch.testing.assert_close(ours, layer_loss(logits, routers.num_chosen))
        if theirs is not None:  # Llama 4 has the key, and no function of that name.
            expected = theirs((logits,), logits.shape[1], routers.num_chosen)
            torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("name", sorted({"qwen3_moe", "mixtral", "granitemoehybrid", "jamba"} & BALANCED))
@pytest.mark.parametrize("max_tokens", [1, 40, 4096])
def test_the_gradient_is_that_of_each_completion_alone(name: str, max_tokens: int) -> None:
    """Whatever shares a microbatch, in training mode, with the mean over completions."""
    is_like_each_completion_alone(policy_of(name), name, max_tokens)


def test_the_gradient_with_the_models_own_head() -> None:
    policy = policy_of("qwen3_moe")
    policy._form = policy._find_form()._replace(has_known_head=False)
    is_like_each_completion_alone(policy, "qwen3_moe", 4096)


@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral"])
def test_the_gradient_in_packs(name: str) -> None:
    policy = policy_of(name)
    policy._is_packed = True
    assert isinstance(policy.microbatches(EXAMPLES, [1.0] * 3, 4096)[0].inputs, Pack)
    is_like_each_completion_alone(policy, name, 4096)


def is_like_each_completion_alone(policy: Recording, name: str, max_tokens: int) -> None:
    stats = balance(policy, max_tokens)
    plain = make_tiny_family(name)
    losses = [slow_loss(plain, example) for example in EXAMPLES]
    loss = torch.stack(losses).mean()
    loss.backward()
    assert stats.loss == pytest.approx(loss.item(), rel=1e-5)
    weights = [len(example.completion_ids) for example in EXAMPLES]
    mean = sum(one.item() * weight for one, weight in zip(losses, weights, strict=True)) / sum(weights)
    assert stats.means["imbalance"] == pytest.approx(mean, rel=1e-5)
    expected = {key: weight.grad for key, weight in plain.named_parameters() if weight.grad is not None}
    assert any(gradient.abs().max() > 1e-4 for gradient in expected.values())
    for key, gradient in expected.items():
        torch.testing.assert_close(policy.gradient[key], gradient, rtol=1e-3, atol=1e-6, msg=key)


@pytest.mark.parametrize("which", [True, "mlp"])
def test_recomputing_changes_no_gradient(which: Any) -> None:
    plain, model = policy_of("qwen3_moe"), make_tiny_family("qwen3_moe")
    recompute_activations(model, which)
    recomputing = policy_of("qwen3_moe", model)
    balance(plain)
    balance(recomputing)
    for key, gradient in plain.gradient.items():
        torch.testing.assert_close(recomputing.gradient[key], gradient, msg=key)


def test_a_stage_adds_it_to_its_loss() -> None:
    def balanced(coefficient: float) -> RlStage:
        return tiny_stage("grpo", loss={"router_balance": coefficient}, kl={"coefficient": 0.0})

    stage, without = balanced(0.1), balanced(0.0)
    assert stage.balances_routers
    assert stage.learns_without_advantage
    assert not without.balances_routers
    assert not without.learns_without_advantage
    zeros = torch.zeros(3)
    measured = Measured(zeros.clone().requires_grad_(), zeros, torch.tensor([2.0, 3.0, 4.0]))
    microbatch: Any = Microbatch(
        inputs=None,  # type: ignore[arg-type]
        completion_ids=zeros.long(),
        lengths=(3,),
        weights=zeros + 1,
        sequence=zeros.long(),
        advantages=zeros,
        rollout_logprobs=zeros,
        old_logprobs=None,
        ref_logprobs=None,
        learned_tokens=None,
        pulled_tokens=None,
        example_indices=(0,),
    )
    terms = policy_loss(stage, beta=0.0)(measured, microbatch)
    assert terms.loss.tolist() == pytest.approx([0.2, 0.3, 0.4])
    assert terms.means["policy/router_imbalance"].tolist() == [2.0, 3.0, 4.0]
    assert "policy/router_imbalance" not in policy_loss(without, beta=0.0)(Measured(zeros, zeros), microbatch).means


def test_it_lowers_the_imbalance_through_adapters_alone() -> None:
    model = make_tiny_family("qwen3_moe")
    add_lora(model, LoraConfig(rank=4, target_modules=("q_proj", "o_proj")), seed=0)
    policy = Policy(LoadedModel(model, make_tokenizer(), 64, CPU, torch.float32), ema_decay=0.0)
    policy.begin_stage(OptimizerConfig(learning_rate=1e-2), keep_reference=False, balance_routers=True)
    seen = [balance(policy).loss for _ in range(20)]
    assert seen[-1] < seen[0] - 0.05


@pytest.mark.parametrize("name", sorted({"llama", "deepseek_v3", "doge"} & set(NAMES)))
def test_other_models_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^the key: .* routers of \w+ForCausalLM; remove the key$"):
        check_routers(make_tiny_family(name), "the key")
