"""What a step did to each token, against the plain computation."""

from __future__ import annotations

import copy
import math

import torch

from groupwise.config import OptimizerConfig
from groupwise.data.batch import Example, StepBatch, weigh
from groupwise.models.load import load_model
from groupwise.models.policy import Policy
from groupwise.training.metrics import trace_tokens
from groupwise.training.update import TokenLoss, update_policy
from groupwise.types import ScoredGroup
from tests.factories import RIGHT, make_rollout, make_scored, tiny_model

TINY = {"hidden_size": 32, "intermediate_size": 64, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1}
TEMPERATURE = 0.7


def make_policy() -> Policy:
    loaded = load_model(tiny_model(), seed=2)
    return Policy(loaded, ema_decay=0.0)


def make_group(completions: list[tuple[int, ...]]) -> ScoredGroup:
    return make_scored("p", [(make_rollout(token_ids=ids), RIGHT) for ids in completions])


def plain_logprobs(policy: Policy, prompt: tuple[int, ...], ids: tuple[int, ...]) -> torch.Tensor:
    """[T, V], of the whole sequence by itself."""
    with torch.no_grad():
        logits = policy.model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / TEMPERATURE, dim=-1)


def test_ratio_divergence_and_entropy_are_of_the_policy_after_the_step() -> None:
    policy = make_policy()
    completions = [(40, 41, 42, 43), (50,), (60, 61)]
    examples = [
        Example((5, 6), ids, problem_index=0, rollout_index=number)
        for number, ids in enumerate(completions)
        if number != 1  # as if its verifier had failed
    ]
    before = {number: plain_logprobs(policy, (5, 6), ids) for number, ids in enumerate(completions)}
    examples = [
        Example(
            **{name: getattr(example, name) for name in ("prompt_ids", "completion_ids", "rollout_index")},
            old_logprobs=policy.old_logprobs([example], TEMPERATURE, 100)[0],
            ref_logprobs=torch.full((len(example.completion_ids),), -2.0),
        )
        for example in examples
    ]
    policy.begin_stage(OptimizerConfig(learning_rate=1e-2), keep_reference=False)
    update = weigh(examples, "token_mean")
    stats = update_policy(
        policy,
        update,
        lambda measured, _: TokenLoss(-measured.logprobs),
        temperature=1.0,
        learning_rate=1e-2,
        max_tokens=100,
    )
    assert stats.is_finite
    weights = copy.deepcopy(policy.model.state_dict())
    (trace,) = trace_tokens(policy, StepBatch((make_group(completions),), examples, {}, 7), TEMPERATURE, 100)
    assert all(torch.equal(weights[name], value) for name, value in policy.model.state_dict().items())
    assert trace.rollouts[1] is None
    for number in (0, 2):
        tokens, ids = trace.rollouts[number], completions[number]
        assert tokens is not None
        after = plain_logprobs(policy, (5, 6), ids)
        for place, token in enumerate(ids):
            now, old = float(after[place, token]), float(before[number][place, token])
            assert math.isclose(tokens.logprobs[place], old, abs_tol=2e-5)
            assert math.isclose(tokens.ratios[place], math.exp(now - old), rel_tol=1e-4, abs_tol=2e-5)
            assert tokens.divergences is not None
            assert math.isclose(tokens.divergences[place], math.exp(-2 - now) - 1 + now + 2, rel_tol=1e-4, abs_tol=2e-5)
            entropy = -float((after[place].exp() * after[place]).sum())
            assert math.isclose(tokens.entropies[place], entropy, rel_tol=1e-4)
        assert max(tokens.ratios) > 1.01, "a likelihood step makes its own tokens likelier"
        assert "".join(tokens.pieces) == policy.tokenizer.decode(list(ids))
