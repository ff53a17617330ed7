"""The stages of a recipe: what is sampled, how rollouts are compared, and how the weights are updated.

Sizes of batches are given in problems and rollouts, never as a product of hidden factors:

    rollouts per step  = problems_per_step × rollouts_per_problem
    updates per step   = epochs_per_batch × (problems_per_step / problems_per_update)

How much of that goes through the model at once (`microbatch_tokens`, `engine.max_batch_rollouts`) affects only memory,
and the results only by rounding.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from groupwise.config.build import Amount, Config, Count, CountOrZero, Like, Share, Within, require, shown

Steps = Annotated[int, Within("[1, 1e7]")]
PerStep = Annotated[int, Within("[1, 1e6]")]
MicrobatchTokens = Annotated[int, Within("[1, 1e8]")]
StopStrings = tuple[Annotated[str, Like(".+", "every text contains it; write what ends a completion")], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig(Config):
    max_new_tokens: Annotated[int, Within("[1, 1e7]")] = 256
    """Maximum length of a completion; longer ones are cut off and count as truncated."""
    temperature: Annotated[float, Within("[0, 100]")] = 1.0
    """Divisor of the logits, in sampling and in the trainer's logprobs."""
    top_k: CountOrZero = 0
    """Sample from the k most likely tokens. 0: off."""
    top_p: Annotated[float, Within("(0, 1]", "1 is off")] = 1.0
    """Sample from the smallest set of tokens with this total probability. 1: off."""
    min_p: Annotated[float, Within("[0, 1)", "0 is off")] = 0.0
    """Sample from tokens with at least this fraction of the most likely token's probability. 0: off."""
    stop_strings: StopStrings = ()
    """End a completion once its text contains one of these strings; the string stays in the completion."""

    @property
    def is_truncated(self) -> bool:
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig(Config):
    learning_rate: Annotated[float, Within("(0, 1]", "1e-6 is usual, 1e-5 for sft, 1e-4 for adapters")] = 1e-6
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Decay of the learning rate after the warm-up, over the rest of the stage."""
    warmup_steps: CountOrZero = 0
    """Number of steps in which the learning rate rises linearly from 0 to its peak."""
    final_share: Share = 0.0
    """Final learning rate of linear and cosine, as a fraction of the peak."""
    beta1: Annotated[float, Within("[0, 1)")] = 0.9
    """AdamW: decay rate of the first moment."""
    beta2: Annotated[float, Within("[0, 1)")] = 0.999
    """AdamW: decay rate of the second moment."""
    epsilon: Annotated[float, Within("(0, 1]", "1e-8 is usual")] = 1e-8
    """AdamW: added to the denominator."""
    weight_decay: Annotated[float, Within("[0, 100]", "0.01 is usual, 0 is off")] = 0.0
    """AdamW: decoupled weight decay, on matrices only."""
    max_grad_norm: Annotated[float, Within("(0, 1e6]", "1 is usual", also=math.inf)] = 1.0
    """Clip the gradient to this norm. inf: off."""
    moments: Literal["fp32", "8bit"] = "fp32"
    """Precision of AdamW's moments: 8 (fp32) or 2 (8bit) bytes per trained weight. Updates are computed in fp32."""
    offload: bool = False
    """Keep fp32 weights and moments in host memory, and run the optimizer step there: slower, with less GPU memory."""


AdvantageRule = Literal[
    "group_mean_std",
    "group_mean",
    "group_mean_relative",
    "leave_one_out",
    "batch_mean_std",
    "group_mean_batch_std",
    "optimal_token",
]

TOKEN_RULES = ("batch_mean_std", "optimal_token")
"""Advantage rules that compare tokens: those of a rollout may get different advantages."""

Surrogate = Literal[
    "clipped", "sequence_clipped", "probability_masked", "soft_gate", "geometric_mean", "cispo", "policy_gradient"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig(Config):
    advantage: AdvantageRule = "group_mean_std"
    """How a rollout's reward is compared with the others'."""
    normalize_batch: bool = False
    """Divide the advantages by their standard deviation over the step's completions."""
    surrogate: Surrogate = "clipped"
    """Objective as a function of the probability ratio."""
    weights: Literal["sequence_mean", "token_mean", "sequence_sum", "constant"] = "sequence_mean"
    """How tokens are averaged: per completion, over all tokens, summed, or divided by a constant length."""
    clip_low: Annotated[float, Within("[0, 1]", "0.2 is usual", also=math.inf)] = 0.2
    """Clip the ratio below 1 − clip_low. inf: off. `probability_masked`: drop tokens with a negative advantage whose
    probability fell by more than this. `geometric_mean`: clip log ratios below −clip_low."""
    clip_high: Annotated[float, Within("[0, 100]", "0.2 is usual", also=math.inf)] = 0.2
    """Clip the ratio above 1 + clip_high. inf: off. `probability_masked`: drop tokens with a positive advantage whose
    probability rose by more than this. `geometric_mean`: clip log ratios above clip_high."""
    dual_clip: Annotated[float, Within("(1, 1000]", "3 is usual", also=math.inf)] = math.inf
    """Limit the loss to this multiple of the advantage when the advantage is negative (3 is usual). inf: off."""
    gate_positive: Annotated[float, Within("(0, 100]", "1 is usual")] = 1.0
    """`soft_gate`: how fast the gradient fades as the ratio leaves 1, for tokens with a positive advantage."""
    gate_negative: Annotated[float, Within("(0, 100]", "1.05 is usual")] = 1.05
    """The same for tokens with a negative advantage."""
    pull: Annotated[float, Within("[0, 1e6]", "1e-3 is usual, 0 is off")] = 0.0
    """Add this times (log π/π_old)² to the loss of each token, which holds the policy near that of the step's start.
    0: off."""
    constant_length: CountOrZero = 0
    """Divisor for weights = "constant". 0: sampling.max_new_tokens."""
    importance: Literal["none", "truncated", "masked", "rejected"] = "none"
    """Correction for differences between engine and trainer, from the ratio π_old / π_engine: weight tokens by
    min(ratio, cap) (`truncated`), by the ratio if it is inside the bounds and by 0 if not (`masked`), or by 1 and 0
    (`rejected`). The default with engine.name = "vllm" is `truncated`."""
    importance_level: Literal["token", "sequence", "geometric"] = "token"
    """Ratio that a token is weighted by: its own, the product of its completion's ratios, or their geometric mean."""
    importance_cap: Annotated[float, Within("[1, 1e6]", "2 is usual", also=math.inf)] = 2.0
    """Maximum weight, and upper bound of the ratio."""
    importance_floor: Annotated[float, Within("[0, 1]", "0.5 is usual")] = 0.0
    """`masked` and `rejected`: lower bound of the ratio. 0: 1 / importance_cap."""
    off_policy_mask: Annotated[float, Within("[0, 1000]", "0.1 is usual", also=math.inf)] = math.inf
    """Drop completions with a negative advantage if the mean of log(π_engine / π) over their tokens is above this, in
    nats. The KL term stays. inf: off."""
    router_balance: Annotated[float, Within("[0, 1000]", "0.001 is usual, 0 is off")] = 0.0
    """Mixture of experts: add this times the load-balancing loss of the routers, which is computed over the tokens of
    each completion and averaged over layers. 0: off."""

    def check(self) -> None:
        require(
            self.importance_floor == 0 or self.importance_floor < self.importance_cap,
            f"importance_floor = {self.importance_floor}, importance_cap = {self.importance_cap}: the first must be "
            "smaller",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyConfig(Config):
    bonus: Annotated[float, Within("[0, 1000]", "0.001 is usual, 0 is off")] = 0.0
    """Subtract this times the entropy of the next-token distribution from the loss of each token. 0: off."""
    target: Annotated[float, Within("[0, 100]", "0.2 is usual, 0 is off")] = 0.0
    """Steer the bonus, which starts at `bonus`, so that the mean entropy of a step is near this, in nats per token. 0:
    the bonus is fixed."""
    target_steps: Count = 10
    """Steps in which a steered bonus can grow or shrink by a factor of e."""
    top_share: Annotated[float, Within("(0, 1]", "0.2 is usual, 1 is off")] = 1.0
    """Learn from this share of the step's tokens alone, those with the highest entropy. KL, pull and bonus count for
    all. 1: off."""
    covariance_share: Annotated[float, Within("[0, 1)", "0.0002 is usual, 0 is off")] = 0.0
    """Clip-Cov: do not learn from this share of the step's tokens, drawn from those whose covariance of logprob and
    advantage is within the bounds. 0: off."""
    covariance_low: Annotated[float, Within("[-1e6, 1e6]", "1 is usual")] = 1.0
    """Lower bound of that covariance."""
    covariance_high: Annotated[float, Within("[-1e6, 1e6]", "5 is usual", also=math.inf)] = 5.0
    """Upper bound of that covariance."""
    pull_share: Annotated[float, Within("(0, 1]", "0.002 is usual, 1 is off")] = 1.0
    """KL-Cov: apply `loss.pull` to this share of the step's tokens alone, those with the highest covariance of logprob
    and advantage. 1: to all."""

    def check(self) -> None:
        require(
            self.target == 0 or self.bonus > 0,
            f"target = {self.target} multiplies the bonus, and bonus = 0 stays 0; start from 0.001",
        )
        require(
            self.covariance_low < self.covariance_high,
            f"covariance_low = {self.covariance_low}, covariance_high = {self.covariance_high}: the first must be "
            "smaller",
        )

    @property
    def needs_covariance(self) -> bool:
        return self.covariance_share > 0 or self.pull_share < 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KlConfig(Config):
    coefficient: Annotated[float, Within("[0, 1e6]", "0.04 is usual", also=math.inf)] = 0.0
    """Weight of the KL divergence from the reference policy. 0: no reference is kept. inf: the loss is the divergence
    only (one end of a sweep over coefficients)."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the KL: k1 = d, k2 = d²/2, k3 = exp(−d) − 1 + d, with d = log π − log π_ref of the sampled token."""
    place: Literal["loss", "reward"] = "loss"
    """Add the KL to the loss, or subtract it from the reward before advantages are computed."""
    unbiased: bool = False
    """For place = "loss": multiply the KL by π/π_old, with a gradient through both, so that the mean gradient of k1 and
    k3 is that of the KL."""
    schedule: Literal["constant", "warmup", "anneal", "target"] = "constant"
    """The coefficient is constant, rises from 0 (`warmup`), falls to 0 (`anneal`) or keeps the KL near `target`."""
    schedule_steps: Count = 100
    """Steps of the warm-up or annealing. For `target`: steps in which the coefficient can grow by a factor of e."""
    target: Annotated[float, Within("(0, 1000]", "0.05 is usual")] = 0.05
    """For schedule = "target": desired KL per token, by the chosen estimator."""
    offload_reference: bool = False
    """Keep the reference in host memory and swap it with the policy for its forward pass. Affects only memory."""

    def check(self) -> None:
        require(
            self.schedule != "target" or self.coefficient > 0,
            'schedule = "target" multiplies the coefficient, and coefficient = 0 stays 0; start from 0.01',
        )
        require(
            math.isfinite(self.coefficient) or (self.place == "loss" and self.schedule == "constant"),
            f"coefficient = {self.coefficient} makes the divergence the only term of the loss: it needs "
            'place = "loss" and schedule = "constant"',
        )
        require(
            not self.unbiased or self.place == "loss",
            'unbiased = true corrects the gradient of the KL, and place = "reward" gives it none; use place = "loss"',
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConfig(Config):
    part_weights: Mapping[str, Amount] = field(default_factory=dict)
    """Weight of each named part of the task's score; with normalize_parts, of its advantage. Other parts have weight
    1."""
    normalize_parts: bool = False
    """Compute an advantage per part within the group and add the weighted advantages, instead of adding the parts."""
    format_parts: tuple[str, ...] = ("tag", "xml", "box", "format")
    """Parts of the score that are a format bonus."""
    format_anneal_steps: CountOrZero = 0
    """Number of steps in which the format bonus falls linearly to 0. 0: keep it."""
    overlong_filter: bool = False
    """Leave truncated completions out of the loss. Their rewards still count in the group's mean."""
    overlong_buffer_share: Annotated[float, Within("[0, 1]", "0 is off, 0.2 is DAPO's")] = 0.0
    """Soft length penalty: it rises linearly over this last fraction of max_new_tokens. 0: off."""
    overlong_penalty: Amount = 1.0
    """Soft length penalty at max_new_tokens."""
    length_cost: Amount = 0.0
    """Penalty on a correct completion in proportion to its length; this much at max_new_tokens."""
    format_tags: tuple[str, ...] = ()
    """Reward a format in any task: these elements, once each and in this order, such as ["think", "answer"]."""
    format_bonus: Amount = 0.1
    """Reward for exactly that format; annealed like format_parts."""
    process_weight: Share = 0.0
    """Weight w of the score of the reasoning (verifier.process): (1 - w) × outcome + w × process. A completion whose
    reasoning cannot be judged keeps its outcome."""
    min_reward: Annotated[float, Within("[-1e6, 1e6]", also=-math.inf)] = -math.inf
    """Minimum reward, applied after everything above."""
    max_reward: Annotated[float, Within("[-1e6, 1e6]", also=math.inf)] = math.inf
    """Maximum reward, applied after everything above."""

    def check(self) -> None:
        require(
            self.min_reward < self.max_reward,
            f"min_reward = {self.min_reward}, max_reward = {self.max_reward}: the first must be smaller",
        )
        require(
            not self.normalize_parts or (math.isinf(self.min_reward) and math.isinf(self.max_reward)),
            "normalize_parts compares the parts of a reward, but min_reward and max_reward clip their sum; remove one "
            "of the two",
        )
        for tag in self.format_tags:
            require(
                re.fullmatch("[A-Za-z][A-Za-z0-9_-]*", tag) is not None, f"format_tags: {shown(tag)} is not a tag name"
            )
        require(
            len(set(self.format_tags)) == len(self.format_tags),
            f"format_tags = {self.format_tags}: each tag may appear only once",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CurriculumConfig(Config):
    kind: Literal["none", "level", "pass_rate"] = "none"
    """Order of the problems. `none`: shuffled epochs. `level`: easy levels first. `pass_rate`: problems that the policy
    solves only sometimes."""
    level_steps: Count = 100
    """`level`: number of steps in which the highest allowed level rises from the lowest level to the highest."""
    low: Share = 0.1
    """`pass_rate`: problems with a lower measured pass rate are in the hard pool."""
    high: Share = 0.9
    """`pass_rate`: problems with a higher measured pass rate are in the easy pool; those in between are active."""
    explore_share: Share = 0.25
    """`pass_rate`: fraction of each step from unmeasured, hard and easy problems, so that problems can change pools."""
    memory: Annotated[float, Within("(0, 1]")] = 0.5
    """`pass_rate`: weight of the newest group in a problem's running pass rate."""

    def check(self) -> None:
        require(self.low < self.high, f"low = {self.low}, high = {self.high}: the first must be smaller")


@dataclass(frozen=True, slots=True, kw_only=True)
class RlStage(Config):
    """A stage of reinforcement learning: sample, score, update."""

    algorithm: str
    """A preset from `groupwise algorithms`: it sets defaults of loss, kl, reward and refill_rounds. Your keys win."""
    name: str = ""
    """Name in logs; by default the algorithm."""
    steps: Steps
    """Number of steps; each one samples, scores and updates."""
    problems_per_step: PerStep
    """Number of problems in each step."""
    rollouts_per_problem: Annotated[int, Within("[1, 1e5]", "8 is usual")]
    """Group size G."""
    problems_per_update: CountOrZero = 0
    """Number of problems per optimizer update. 0: all problems of the step."""
    epochs_per_batch: Annotated[int, Within("[1, 1e4]", "1 is usual")] = 1
    """Number of passes over each batch of rollouts."""
    microbatch_tokens: MicrobatchTokens = 16384
    """Maximum number of tokens, padding included, in one pass of an update. It affects only memory."""
    max_rollouts_per_problem: CountOrZero = 0
    """Adaptive group size: a group with no signal gets more rollouts, up to this many. 0: off."""
    refill_rounds: Annotated[int, Within("[0, 1e4]", "0 is off, 4 is usual")] = 0
    """Dynamic sampling: how many times in a step groups with no signal are resampled from other problems."""
    start_from: Literal["final", "best"] = "final"
    """Initial weights: the last of the previous stage, or the best by held-out pass@1 so far."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """How rollouts are sampled."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """AdamW and its schedule; reset at the start of the stage."""
    loss: LossConfig = field(default_factory=LossConfig)
    """Advantage, surrogate and weights."""
    kl: KlConfig = field(default_factory=KlConfig)
    """KL divergence from the reference policy, which is the policy at the start of this stage."""
    entropy: EntropyConfig = field(default_factory=EntropyConfig)
    """What holds the entropy up: a bonus, and which tokens are learned from."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    """How scores become rewards."""
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    """Order of the problems."""

    def check(self) -> None:
        self._check_group_size()
        require(
            not self.reward.normalize_parts or self.loss.advantage not in TOKEN_RULES,
            f"reward.normalize_parts compares parts of rollouts, but loss.advantage = {self.loss.advantage!r} compares "
            "tokens; remove one of the two",
        )
        require(
            not self.loss.normalize_batch or self.loss.advantage not in (*TOKEN_RULES, "group_mean_batch_std"),
            f"loss.normalize_batch divides what rollouts got in their groups by its standard deviation over the batch, "
            f"which loss.advantage = {self.loss.advantage!r} does already or cannot use; remove one of the two, or "
            'take "group_mean_std"',
        )
        require(
            self.entropy.pull_share == 1 or self.loss.pull > 0,
            f"entropy.pull_share = {self.entropy.pull_share} chooses tokens for loss.pull, which is 0; set loss.pull, "
            "such as 0.5",
        )
        is_linear = self.loss.advantage in ("group_mean", "leave_one_out")
        require(
            is_linear or not (self.reward.normalize_parts and self.uses_reference and self.kl.place == "reward"),
            f"reward.normalize_parts with loss.advantage = {self.loss.advantage!r} divides each part by its spread, "
            'the KL penalty too, which cancels kl.coefficient; set kl.place = "loss"',
        )
        per_update = self.problems_per_update or self.problems_per_step
        require(
            1 <= per_update <= self.problems_per_step and self.problems_per_step % per_update == 0,
            f"problems_per_update = {per_update} does not divide problems_per_step = {self.problems_per_step} "
            f"({self.problems_per_step} / {per_update} = {self.problems_per_step / max(per_update, 1):g} updates)",
        )
        require(
            self.loss.surrogate != "policy_gradient" or self.updates_per_step == 1,
            f"{self.algorithm} makes one on-policy update per step, but epochs_per_batch = {self.epochs_per_batch} × "
            f"(problems_per_step = {self.problems_per_step} / problems_per_update = {per_update}) = "
            f"{self.updates_per_step} updates on the same rollouts; make it one, or take a clipped surrogate",
        )
        require(
            self.sampling.temperature > 0, "sampling.temperature = 0: all rollouts of a greedy group are equal; use 1.0"
        )

    def _check_group_size(self) -> None:
        size, cap = self.rollouts_per_problem, self.max_rollouts_per_problem
        require(
            size >= 2 or self.loss.advantage == "batch_mean_std",
            f"rollouts_per_problem = {size}: loss.advantage = {self.loss.advantage!r} compares a rollout with its "
            'group, and a group of 1 cannot be compared; use at least 2 (8 is usual), or advantage = "batch_mean_std"',
        )
        require(
            cap == 0 or (cap > size and cap % size == 0),
            f"max_rollouts_per_problem = {cap}: groups grow by rollouts_per_problem = {size} at a time, so the cap "
            f"must be a larger multiple of it, such as {2 * size}; 0 is off",
        )

    @property
    def updates_per_step(self) -> int:
        return self.epochs_per_batch * (self.problems_per_step // (self.problems_per_update or self.problems_per_step))

    @property
    def uses_reference(self) -> bool:
        return self.kl.coefficient > 0

    @property
    def offloads_reference(self) -> bool:
        return self.kl.offload_reference

    @property
    def balances_routers(self) -> bool:
        return self.loss.router_balance > 0

    @property
    def learns_without_advantage(self) -> bool:
        """Whether the loss has a term that stays where the advantage is 0."""
        has_kl = self.uses_reference and self.kl.place == "loss"
        return has_kl or self.loss.pull > 0 or self.balances_routers or self.entropy.bonus > 0

    @property
    def needs_old_logprobs(self) -> bool:
        """With a single update and no correction, the old policy is the current one: no forward pass is needed."""
        has_penalty = self.uses_reference and self.kl.place == "reward"
        return (
            self.updates_per_step > 1 or self.loss.importance != "none" or has_penalty or self.entropy.needs_covariance
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SftStage(Config):
    """A stage of supervised fine-tuning: it imitates demonstrations; only completions count in the loss."""

    algorithm: Literal["sft"]
    """`sft`."""
    name: str = ""
    """Name in logs; by default `sft`."""
    steps: Steps
    """Number of optimizer updates."""
    demonstrations_per_step: PerStep
    """Number of demonstrations in each update."""
    source: Literal["task", "rollouts", "file"] = "task"
    """Source of demonstrations: the task itself, the correct rollouts of earlier stages of this run, or a file."""
    file: str = ""
    """For source = "file": a JSONL file with `prompt` (or `messages`) and `completion`."""
    max_demonstrations: CountOrZero = 0
    """Maximum number of demonstrations. 0: all."""
    min_demonstrations: Count = 1
    """For source = "rollouts": stop the run when there are fewer."""
    weights: Literal["token_mean", "sequence_mean"] = "token_mean"
    """How tokens are averaged: over all tokens, or per completion."""
    microbatch_tokens: MicrobatchTokens = 16384
    """Maximum number of tokens, with padding, that go through the model at once. It affects only memory."""
    start_from: Literal["final", "best"] = "final"
    """Initial weights: the last of the previous stage, or the best by held-out pass@1 so far."""
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(learning_rate=1e-5))
    """AdamW and its schedule; reset at the start of the stage."""

    def check(self) -> None:
        require(
            (self.source == "file") == bool(self.file),
            f'source = "{self.source}" and file = {shown(self.file)}: source = "file" needs a file, and only it does',
        )

    uses_reference = False
    offloads_reference = False
    balances_routers = False


Stage = RlStage | SftStage
