"""The stages of a recipe: what is sampled, how it is compared, and how the weights move.

Batch arithmetic is stated in problems and rollouts, never as a product of hidden factors:

    rollouts per step  = problems_per_step × rollouts_per_problem
    updates per step   = epochs_per_batch × (problems_per_step / problems_per_update)

How much of that goes through the model at once (`microbatch_tokens`, `engine.max_batch_rollouts`) is a matter of memory
and moves no number of the result but for the last bits of rounding.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from groupwise.config.build import require


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    max_new_tokens: int = 256
    """The longest completion; longer ones are cut and count as truncated."""
    temperature: float = 1.0
    """Divides the logits while sampling and in the trainer's logprobs alike."""
    top_k: int = 0
    """Draw from the k likeliest tokens; 0 is off."""
    top_p: float = 1.0
    """Draw from the smallest set of tokens with this much probability; 1 is off."""
    min_p: float = 0.0
    """Draw from tokens with at least this share of the likeliest one's probability; 0 is off."""
    stop_strings: tuple[str, ...] = ()
    """End a completion once its text contains one of these; the string stays in the completion."""

    def __post_init__(self) -> None:
        require(self.max_new_tokens >= 1, f"max_new_tokens = {self.max_new_tokens}: must be at least 1")
        require(self.temperature >= 0, f"temperature = {self.temperature}: must not be negative; 0 is greedy")
        require(self.top_k >= 0, f"top_k = {self.top_k}: must not be negative; 0 is off")
        require(0 < self.top_p <= 1, f"top_p = {self.top_p}: must be in (0, 1]; 1 is off")
        require(0 <= self.min_p < 1, f"min_p = {self.min_p}: must be in [0, 1); 0 is off")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    learning_rate: float = 1e-6
    """The peak of the schedule."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What the learning rate does after the warm-up, until the stage's last step."""
    warmup_steps: int = 0
    """Steps of linear rise from 0 to the peak."""
    final_share: float = 0.0
    """Where linear and cosine end, as a share of the peak."""
    beta1: float = 0.9
    """AdamW: decay of the gradient's mean."""
    beta2: float = 0.999
    """AdamW: decay of the gradient's square."""
    epsilon: float = 1e-8
    """AdamW: added to the denominator."""
    weight_decay: float = 0.0
    """AdamW: decoupled decay, on matrices alone."""
    max_grad_norm: float = 1.0
    """The gradient is scaled down to this norm; inf is off."""
    moments: Literal["fp32", "8bit"] = "fp32"
    """AdamW's two moments: 8 bytes per trained weight, or 2; the update itself is in fp32 in both. Memory only, but
    for the precision of the moments."""
    offload: bool = False
    """Keep fp32 weights and moments in host memory and make the optimizer's step there: slower, and less on the GPU."""

    def __post_init__(self) -> None:
        require(self.learning_rate > 0, f"learning_rate = {self.learning_rate}: must be above 0")
        require(self.max_grad_norm > 0, f"max_grad_norm = {self.max_grad_norm}: must be above 0; inf is off")
        require(self.warmup_steps >= 0, f"warmup_steps = {self.warmup_steps}: must not be negative")
        require(self.final_share >= 0, f"final_share = {self.final_share}: must not be negative")
        require(0 <= self.beta1 < 1, f"beta1 = {self.beta1}: must be in [0, 1)")
        require(0 <= self.beta2 < 1, f"beta2 = {self.beta2}: must be in [0, 1)")
        require(self.epsilon > 0, f"epsilon = {self.epsilon}: must be above 0")
        require(self.weight_decay >= 0, f"weight_decay = {self.weight_decay}: must not be negative")


AdvantageRule = Literal["group_mean_std", "group_mean", "leave_one_out", "batch_mean_std", "group_mean_batch_std"]
Surrogate = Literal["clipped", "sequence_clipped", "cispo", "policy_gradient"]
WeightRule = Literal["sequence_mean", "token_mean", "sequence_sum", "constant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    advantage: AdvantageRule = "group_mean_std"
    """How a rollout's reward is compared with the others'."""
    surrogate: Surrogate = "clipped"
    """The function of the probability ratio that is maximized."""
    weights: WeightRule = "sequence_mean"
    """How tokens are averaged: per completion, over all tokens, summed, or by a constant length."""
    clip_low: float = 0.2
    """The ratio is clipped below 1 − clip_low; inf is off."""
    clip_high: float = 0.2
    """The ratio is clipped above 1 + clip_high; inf is off."""
    dual_clip: float = float("inf")
    """With a negative advantage the loss is bounded by this many times the advantage (3 is usual); inf is off."""
    constant_length: int = 0
    """Divisor of weights = "constant"; 0 takes sampling.max_new_tokens."""
    importance: Literal["none", "truncated", "masked"] = "none"
    """Correction for rollouts whose engine disagrees with the trainer: weigh tokens by min(ratio, cap) or drop them.
    With engine.name = "vllm" the default is `truncated`."""
    importance_cap: float = 2.0
    """Truncated: the largest weight. Masked: tokens with a ratio outside [1/cap, cap] are dropped."""

    def __post_init__(self) -> None:
        require(self.clip_low >= 0 and self.clip_high >= 0, "clip_low and clip_high must not be negative; inf is off")
        require(self.dual_clip > 1, f"dual_clip = {self.dual_clip}: must be above 1 (3 is usual); inf is off")
        require(self.importance_cap >= 1, f"importance_cap = {self.importance_cap}: must be at least 1")
        require(self.constant_length >= 0, f"constant_length = {self.constant_length}: must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class KlConfig:
    coefficient: float = 0.0
    """Weight of the divergence from the reference policy; at 0 no reference is kept, and at inf the loss is the
    divergence alone (the end of a sweep over coefficients)."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """k1 = d, k2 = d²/2, k3 = exp(−d) − 1 + d, with d = log π − log π_ref of the sampled token."""
    place: Literal["loss", "reward"] = "loss"
    """Added to the loss, or taken off the reward before advantages are computed."""
    schedule: Literal["constant", "warmup", "anneal", "target"] = "constant"
    """Constant; from 0 up to the coefficient; from the coefficient down to 0; or steered toward `target`."""
    schedule_steps: int = 100
    """Length of the warm-up or of the anneal; for `target`, the steps in which the coefficient may grow e-fold."""
    target: float = 0.05
    """For schedule = "target": the KL per token (by the chosen estimator) that the controller steers to."""
    offload_reference: bool = False
    """Keep the reference in host memory; it comes to the GPU for its scoring pass, in the policy's place. Memory
    only."""

    def __post_init__(self) -> None:
        require(self.coefficient >= 0, f"coefficient = {self.coefficient}: must not be negative")
        require(self.schedule_steps >= 1, f"schedule_steps = {self.schedule_steps}: must be at least 1")
        require(self.target > 0, f"target = {self.target}: must be above 0")
        require(
            self.schedule != "target" or self.coefficient > 0,
            'schedule = "target" multiplies the coefficient, and coefficient = 0 stays 0; start from 0.01, say',
        )
        require(
            math.isfinite(self.coefficient) or (self.place == "loss" and self.schedule == "constant"),
            f"coefficient = {self.coefficient} leaves the divergence alone in the loss: it goes with "
            'place = "loss" and schedule = "constant"',
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConfig:
    part_weights: Mapping[str, float] = field(default_factory=dict)
    """Weight of each named part of the task's score; parts not named weigh 1."""
    normalize_parts: bool = False
    """Give each part its own advantage within the group and add those up, instead of adding raw rewards."""
    format_parts: tuple[str, ...] = ("tag", "xml", "box", "format")
    """Which parts are a bonus for format."""
    format_anneal_steps: int = 0
    """The format bonus falls linearly to 0 over these steps of the stage; 0 keeps it."""
    overlong_filter: bool = False
    """Leave truncated completions out of the loss (their rewards still count in the group's mean)."""
    overlong_buffer_share: float = 0.0
    """Soft length penalty: it rises linearly over this last share of max_new_tokens; 0 is off."""
    overlong_penalty: float = 1.0
    """The soft penalty at max_new_tokens."""
    length_cost: float = 0.0
    """Taken off a correct completion's reward in proportion to its length: this much at max_new_tokens."""
    format_tags: tuple[str, ...] = ()
    """A format to reward whatever the task: these elements, once each and in this order, as in ["think", "answer"]."""
    format_bonus: float = 0.1
    """The reward for exactly that format; it is annealed like format_parts."""
    process_weight: float = 0.0
    """Blends the score of the reasoning in: (1 - w) × outcome + w × process, as in 0.3; see verifier.process. A
    completion whose reasoning has nothing to judge keeps its outcome."""
    min_reward: float = -math.inf
    """Rewards below this, after all of the above, are raised to it."""
    max_reward: float = math.inf
    """Rewards above this are lowered to it."""

    def __post_init__(self) -> None:
        share = self.overlong_buffer_share
        require(0 <= self.process_weight <= 1, f"process_weight = {self.process_weight}: must be in [0, 1]")
        require(
            self.min_reward < self.max_reward,
            f"min_reward = {self.min_reward}, max_reward = {self.max_reward}: the first must be below the second",
        )
        for key in ("length_cost", "format_bonus"):
            require(math.isfinite(getattr(self, key)), f"{key} = {getattr(self, key)}: must be finite")
        for tag in self.format_tags:
            require(re.fullmatch("[A-Za-z][A-Za-z0-9_-]*", tag) is not None, f"format_tags: {tag!r} is not a tag name")
        require(len(set(self.format_tags)) == len(self.format_tags), f"format_tags = {self.format_tags}: one is twice")
        require(0 <= share <= 1, f"overlong_buffer_share = {share}: must be in [0, 1]; 0 is off, DAPO takes 0.2")
        require(self.format_anneal_steps >= 0, f"format_anneal_steps = {self.format_anneal_steps}: must be ≥ 0")
        require(math.isfinite(self.overlong_penalty), f"overlong_penalty = {self.overlong_penalty}: must be finite")
        for name, value in self.part_weights.items():
            require(math.isfinite(value), f"part_weights.{name} = {value}: must be finite")


@dataclass(frozen=True, slots=True, kw_only=True)
class CurriculumConfig:
    kind: Literal["none", "level", "pass_rate"] = "none"
    """`none`: shuffled passes. `level`: easy levels first. `pass_rate`: problems that the policy half solves."""
    level_steps: int = 100
    """`level`: steps over which the highest allowed level rises from the lowest to the highest there is."""
    low: float = 0.1
    """`pass_rate`: under this measured pass rate a problem is in the hard pool ..."""
    high: float = 0.9
    """... and above this in the easy pool; between them it is in the active pool."""
    explore_share: float = 0.25
    """`pass_rate`: share of each step drawn from unmeasured, hard and easy problems, so that pools can move."""
    memory: float = 0.5
    """`pass_rate`: weight of the newest group in a problem's running pass rate."""

    def __post_init__(self) -> None:
        require(0 <= self.low < self.high <= 1, f"low = {self.low}, high = {self.high}: need 0 ≤ low < high ≤ 1")
        require(0 <= self.explore_share <= 1, f"explore_share = {self.explore_share}: must be in [0, 1]")
        require(0 < self.memory <= 1, f"memory = {self.memory}: must be in (0, 1]")
        require(self.level_steps >= 1, f"level_steps = {self.level_steps}: must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class RlStage:
    """A stage that samples, scores and learns."""

    algorithm: str
    """A preset (`groupwise algorithms`): it sets the defaults of loss, kl, reward and refill; your own keys win."""
    name: str = ""
    """Shown in logs; by default the algorithm."""
    steps: int
    """How many times to sample, score and learn."""
    problems_per_step: int
    """Problems sampled in each step."""
    rollouts_per_problem: int
    """The group size G."""
    problems_per_update: int = 0
    """Problems whose rollouts share one optimizer update; 0 is all of the step's."""
    epochs_per_batch: int = 1
    """How often each batch of rollouts is learned from."""
    microbatch_tokens: int = 16384
    """Tokens, padding included, that go through the model at once in the update, at most. Memory only."""
    max_rollouts_per_problem: int = 0
    """Adaptive group size: a group without signal gets further rollouts up to this many; 0 is off."""
    refill_rounds: int = 0
    """Dynamic sampling: how often groups without signal are replaced by other problems' groups within a step."""
    start_from: Literal["final", "best"] = "final"
    """Which weights of the stage before: its last, or the best by held-out pass@1 in the run so far."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """How rollouts are drawn."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """AdamW and its schedule; starts fresh with the stage."""
    loss: LossConfig = field(default_factory=LossConfig)
    """Advantage, surrogate and weights."""
    kl: KlConfig = field(default_factory=KlConfig)
    """Divergence from the reference policy: the policy as this stage found it."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    """From scores to rewards."""
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    """Which problems come next."""

    def __post_init__(self) -> None:
        for key in ("steps", "problems_per_step", "rollouts_per_problem", "epochs_per_batch", "microbatch_tokens"):
            require(getattr(self, key) >= 1, f"{key} = {getattr(self, key)}: must be at least 1")
        self._check_group_size()
        require(
            not self.reward.normalize_parts or self.loss.advantage != "batch_mean_std",
            'reward.normalize_parts compares parts within groups, and loss.advantage = "batch_mean_std" compares '
            "tokens over the batch; drop one of the two",
        )
        per_update = self.problems_per_update or self.problems_per_step
        require(
            1 <= per_update <= self.problems_per_step and self.problems_per_step % per_update == 0,
            f"problems_per_update = {per_update} does not divide problems_per_step = {self.problems_per_step} "
            f"({self.problems_per_step} / {per_update} = {self.problems_per_step / max(per_update, 1):g} updates)",
        )
        require(
            self.loss.surrogate != "policy_gradient" or self.updates_per_step == 1,
            f"{self.algorithm} is one on-policy pass without a ratio, but epochs_per_batch = {self.epochs_per_batch} × "
            f"(problems_per_step = {self.problems_per_step} / problems_per_update = {per_update}) = "
            f"{self.updates_per_step} updates on the same rollouts; make that one update, or take a clipped surrogate",
        )
        require(self.sampling.temperature > 0, "sampling.temperature = 0: a greedy group has no two different rollouts")

    def _check_group_size(self) -> None:
        size, cap = self.rollouts_per_problem, self.max_rollouts_per_problem
        needs_group = self.loss.advantage != "batch_mean_std"
        require(
            size >= 2 or not needs_group,
            f"rollouts_per_problem = {size}: loss.advantage = {self.loss.advantage!r} compares a rollout with its "
            'group, and a group of 1 has nobody to beat; use at least 2 (8 is usual), or advantage = "batch_mean_std"',
        )
        require(
            cap == 0 or (cap > size and cap % size == 0),
            f"max_rollouts_per_problem = {cap}: groups grow by rollouts_per_problem = {size} at a time, so the cap "
            f"must be a larger multiple of it, such as {2 * size}; 0 is off",
        )
        require(self.refill_rounds >= 0, f"refill_rounds = {self.refill_rounds}: must not be negative")

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
    def needs_old_logprobs(self) -> bool:
        """With a single update and no correction the old policy is the current one, and a forward pass is saved."""
        has_penalty = self.uses_reference and self.kl.place == "reward"
        return self.updates_per_step > 1 or self.loss.importance != "none" or has_penalty


@dataclass(frozen=True, slots=True, kw_only=True)
class SftStage:
    """A stage that imitates demonstrations; the loss is on the completion alone."""

    algorithm: Literal["sft"]
    """`sft`."""
    name: str = ""
    """Shown in logs; by default `sft`."""
    steps: int
    """Optimizer updates."""
    demonstrations_per_step: int
    """Demonstrations in each update."""
    source: Literal["task", "rollouts", "file"] = "task"
    """The task's own solver or template, the correct rollouts of earlier stages of this run, or a file."""
    file: str = ""
    """For source = "file": JSONL with `prompt` (or `messages`) and `completion`."""
    max_demonstrations: int = 0
    """Use only this many; 0 is all there are."""
    min_demonstrations: int = 1
    """For source = "rollouts": refuse to go on with fewer than this."""
    weights: Literal["token_mean", "sequence_mean"] = "token_mean"
    """How tokens are averaged."""
    microbatch_tokens: int = 16384
    """Tokens, padding included, that go through the model at once, at most. Memory only."""
    start_from: Literal["final", "best"] = "final"
    """Which weights of the stage before."""
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(learning_rate=1e-5))
    """AdamW and its schedule; starts fresh with the stage."""

    def __post_init__(self) -> None:
        for key in ("steps", "demonstrations_per_step", "microbatch_tokens", "min_demonstrations"):
            require(getattr(self, key) >= 1, f"{key} = {getattr(self, key)}: must be at least 1")
        require(
            (self.source == "file") == bool(self.file),
            f'source = {self.source!r} and file = {self.file!r}: a file goes with source = "file", and only with it',
        )

    @property
    def uses_reference(self) -> bool:
        return False

    @property
    def offloads_reference(self) -> bool:
        return False


Stage = RlStage | SftStage
