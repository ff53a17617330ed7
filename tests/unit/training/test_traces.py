"""What a step did to each token, against the plain computation; and in a run."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import torch

from groupwise.config import ModelConfig, OptimizerConfig, make_recipe
from groupwise.data.batch import Example, weigh
from groupwise.data.step_batch import StepBatch
from groupwise.models.load import load_model
from groupwise.models.policy import Policy
from groupwise.runs import Run
from groupwise.training import pipeline
from groupwise.training.traces import trace_tokens
from groupwise.training.update import TokenLoss, update_policy
from groupwise.types import Finish, Group, Message, Problem, Prompt, Rollout, Score, ScoredGroup, Verdict

TINY = {"hidden_size": 32, "intermediate_size": 64, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1}
TEMPERATURE = 0.7


def make_policy() -> Policy:
    loaded = load_model(ModelConfig(path="tiny-qwen3", device="cpu", dtype="float32", tiny=TINY), seed=2)
    return Policy(loaded, ema_decay=0.0)


def make_group(completions: list[tuple[int, ...]]) -> ScoredGroup:
    problem = Problem("p", (Message("user", "?"),), "1")
    rollouts = tuple(Rollout(ids, (-1.0,) * len(ids), "", Finish.STOP, 0) for ids in completions)
    scores = (Score(1.0, Verdict.CORRECT),) * len(completions)
    zeros = (0.0,) * len(completions)
    return ScoredGroup(Group(Prompt(problem, (5, 6)), rollouts), scores, zeros, zeros, has_signal=True)


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
        policy, update, lambda logprobs, *_: TokenLoss(-logprobs), temperature=1.0, learning_rate=1e-2, max_tokens=100
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


def test_a_run_keeps_them_beside_its_rollouts(tmp_path: Path) -> None:
    stage = {"algorithm": "grpo", "steps": 4, "problems_per_step": 2, "rollouts_per_problem": 3}
    table = {
        "name": "traced",
        "model": {"path": "tiny-qwen3", "device": "cpu", "tiny": TINY | {"context_tokens": 128}},
        "task": {"name": "tests.integration.toy_task:EvenLetters"},
        "stages": [
            stage
            | {"sampling": {"max_new_tokens": 6}, "optimizer": {"learning_rate": 1e-2}, "kl": {"coefficient": 0.0}}
        ],
        "logging": {"tokens_every_steps": 2},
    }
    assert pipeline.train(make_recipe(table), tmp_path / "run")
    run = Run(tmp_path / "run")
    assert run.token_steps() == [2, 4]
    assert [record.step for record in run.steps() if "time/tokens_s" in record.metrics] == [2, 4]
    for step in (2, 4):
        groups, traces = run.rollouts(step), run.tokens(step)
        assert [trace.problem_id for trace in traces] == [scored.group.prompt.problem.id for scored in groups]
        for scored, trace in zip(groups, traces, strict=True):
            for rollout, tokens in zip(scored.group.rollouts, trace.rollouts, strict=True):
                assert tokens is not None
                assert len(tokens.pieces) == len(tokens.ratios) == len(rollout.token_ids)
                assert tokens.divergences is None
                drawn = zip(tokens.logprobs, rollout.rollout_logprobs, strict=True)
                assert all(abs(kept - exact) < 1e-4 for kept, exact in drawn)
    moved = [ratio for trace in run.tokens(2) for tokens in trace.rollouts if tokens for ratio in tokens.ratios]
    assert any(abs(ratio - 1) > 1e-3 for ratio in moved)
