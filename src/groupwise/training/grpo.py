"""The GRPO loop: sample a group of completions per problem, score them, learn from those better than their group.

    ┌─▶ collect ──▶ groups with scores ──▶ advantages ──▶ batch ──▶ update × (epochs × updates per epoch) ──┐
    │   (engine, verifier)                                                                                │
    └──────────── the weights that were just updated are the weights that are sampled from ◀──────────────┘

Every preset is this loop; they differ in pure functions of `groupwise.algo`. A checkpoint can be made between any two
updates: it contains the batch in flight, and a resumed run continues with the next update, bit for bit.

Elsewhere: the choice of problems (data/sampler), comparison of rewards (scoring/credit), the loss per token
(training/policy_loss) and its coefficients (training/steering), the model (models/policy), evaluating, logging and
saving (training/training).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from groupwise.algo.losses import kl_estimate
from groupwise.base.seeds import seed_of
from groupwise.config import RlStage
from groupwise.data.batch import Example, StepBatch, Update, deal_problems, weigh
from groupwise.data.sampler import ProblemSampler
from groupwise.models.policy import Policy
from groupwise.scoring.credit import Member, assign_advantages, is_truncated
from groupwise.training.collect import Collected, Collector
from groupwise.training.gate import check_engine
from groupwise.training.metrics import rollout_metrics, update_metrics
from groupwise.training.policy_loss import policy_loss
from groupwise.training.steering import current_beta, current_bonus, next_beta, next_bonus
from groupwise.training.token_choice import choose_tokens
from groupwise.training.training import Training
from groupwise.training.update import scheduled_rate, update_policy
from groupwise.types import Rollout, ScoredGroup


def run_stage(training: Training, stage: RlStage) -> None:
    """Run a stage from `training.position` to its end."""
    policy, position, seed = training.policy, training.position, training.recipe.seed
    sampler = ProblemSampler(training.train_problems, stage.curriculum, seed_of(seed, stage.name))
    if position.sampler is not None:
        sampler.load_state(position.sampler)
    collector = Collector(stage, training.scorer, training.engine, training.prompts, seed, policy.world)

    while not training.is_stage_over(stage):
        step_start = time.perf_counter()
        beta, bonus = current_beta(stage, position), current_bonus(stage, position)

        if training.batch is None:
            with training.control.interruptible():
                collected = collector.collect(sampler, position.stage_step, policy.version)
                batch = make_batch(policy, stage, collected, position.stage_step, beta)
                check_engine(training, stage, batch.examples)
            position.sampler = sampler.state()
            training.log_rollouts(stage, batch.groups + collected.set_aside)
        else:
            batch = training.batch

        loss_function = policy_loss(stage, beta, bonus)
        for number in range(len(batch.updates), stage.updates_per_step):
            stats = update_policy(
                policy,
                choose_examples(stage, batch, number, key=(seed, stage.name, position.stage_step)),
                loss_function,
                temperature=stage.sampling.temperature,
                learning_rate=scheduled_rate(stage.optimizer, position.stage_step, stage.steps),
                max_tokens=stage.microbatch_tokens,
            )
            batch.updates.append(stats)
            training.batch = batch if number + 1 < stage.updates_per_step else None
            training.after_update(stats)

        training.log_tokens(stage, batch)
        metrics = batch.metrics | update_metrics(batch.updates) | sampler.metrics() | {"kl/coefficient": beta}
        position.kl_coefficient = next_beta(stage, beta, metrics.get(f"kl/ref_{stage.kl.estimator}"))
        position.entropy_bonus = next_bonus(stage, bonus, metrics.get("policy/entropy_nats"))
        training.after_step(stage, metrics, num_tokens=batch.num_tokens, seconds=time.perf_counter() - step_start)


def make_batch(policy: Policy, stage: RlStage, collected: Collected, stage_step: int, beta: float) -> StepBatch:
    """Make examples of rollouts, with advantages and, if the stage needs them, old and reference logprobs."""
    start = time.perf_counter()
    examples = [
        _example(scored, group, number)
        for group, scored in enumerate(collected.groups)
        for number, score in enumerate(scored.scores)
        if not score.is_error
    ]
    temperature, max_tokens = stage.sampling.temperature, stage.microbatch_tokens
    if stage.needs_old_logprobs:
        old = policy.old_logprobs(examples, temperature, max_tokens)
        examples = [replace(example, old_logprobs=row) for example, row in zip(examples, old, strict=True)]
    if stage.uses_reference:
        ref = policy.ref_logprobs(examples, temperature, max_tokens)
        examples = [replace(example, ref_logprobs=row) for example, row in zip(examples, ref, strict=True)]

    penalties = reward_penalties(stage, examples, beta)
    advantages = assign_advantages(stage, collected.groups, penalties, stage_step)
    # An advantage of exactly 0 adds nothing to the surrogate. Without another term the rollout is skipped.
    examples = [
        replace(
            example,
            advantages=advantages[example.member].float(),
            is_learned=stage.learns_without_advantage or bool(advantages[example.member].any()),
        )
        for example in examples
        if not (stage.reward.overlong_filter and is_truncated(_rollout(collected.groups, example)))
    ]
    examples = choose_tokens(stage, policy, examples, key=(stage.name, stage_step))
    groups = tuple(_with_advantages(scored, group, advantages) for group, scored in enumerate(collected.groups))
    metrics = rollout_metrics(groups, collected.set_aside, stage.reward, stage_step) | {
        "groups/extra_rollouts": float(collected.num_extra_rollouts),
        "time/sample_s": collected.sample_s,
        "time/score_s": collected.score_s,
        "time/logprobs_s": time.perf_counter() - start,
    }
    sampled = groups + collected.set_aside
    num_tokens = sum(len(rollout.token_ids) for scored in sampled for rollout in scored.group.rollouts)
    return StepBatch(groups, examples, metrics, num_tokens)


def reward_penalties(stage: RlStage, examples: Sequence[Example], beta: float) -> dict[Member, Tensor]:
    """Return β·KL per token of each rollout, for stages that subtract it from the reward."""
    if not (stage.uses_reference and stage.kl.place == "reward"):
        return {}
    penalties = {}
    for example in examples:
        assert example.old_logprobs is not None
        assert example.ref_logprobs is not None
        penalties[example.member] = beta * kl_estimate(stage.kl.estimator, example.old_logprobs, example.ref_logprobs)
    return penalties


def choose_examples(stage: RlStage, batch: StepBatch, number: int, key: Sequence[object]) -> Update:
    """Return the examples of the step's `number`-th update. Each epoch redistributes the problems."""
    per_epoch = stage.updates_per_step // stage.epochs_per_batch
    epoch, index = divmod(number, per_epoch)
    problems = set(deal_problems(len(batch.groups), per_epoch, (*key, "epoch", epoch))[index])
    chosen = [example for example in batch.examples if example.problem_index in problems]
    return weigh(chosen, stage.loss.weights, stage.loss.constant_length or stage.sampling.max_new_tokens)


def _rollout(groups: Sequence[ScoredGroup], example: Example) -> Rollout:
    return groups[example.problem_index].group.rollouts[example.rollout_index]


def _example(scored: ScoredGroup, group: int, number: int) -> Example:
    rollout = scored.group.rollouts[number]
    return Example(
        prompt_ids=scored.group.prompt.token_ids,
        completion_ids=rollout.token_ids,
        problem_index=group,
        rollout_index=number,
        rollout_logprobs=torch.tensor(rollout.rollout_logprobs, dtype=torch.float32),
    )


def _with_advantages(scored: ScoredGroup, group: int, advantages: dict[Member, Tensor]) -> ScoredGroup:
    """Return the record for the log. Advantages that differ by token are averaged."""
    rows = [advantages.get((group, number)) for number in range(len(scored.scores))]
    return replace(scored, advantages=tuple(0.0 if row is None else float(row.mean()) for row in rows))
