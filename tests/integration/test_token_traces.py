"""The traces of tokens that a run writes beside its rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from groupwise.runs import Run
from groupwise.training import pipeline
from tests.factories import tiny_recipe


def test_a_run_keeps_them_beside_its_rollouts(tmp_path: Path) -> None:
    stage: dict[str, Any] = {"algorithm": "grpo", "steps": 4, "problems_per_step": 2, "rollouts_per_problem": 3}
    stage |= {"sampling": {"max_new_tokens": 6}, "optimizer": {"learning_rate": 1e-2}, "kl": {"coefficient": 0.0}}
    assert pipeline.train(tiny_recipe(stages=[stage], logging={"tokens_every_steps": 2}), tmp_path / "run")
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
