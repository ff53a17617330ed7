"""The records that flow through one step of training, in the order in which they are made.

    Problem ─▶ Prompt ─▶ Group[Rollout × G] ─▶ ScoredGroup(Score, advantage) ─▶ UpdateStats ─▶ StepRecord

Records are frozen, and made without torch, so that readers of run directories can use them.

Logprobs are named after who computed them: `logprobs` (the trainer now, with gradient), `old_logprobs` (the trainer
before the update), `rollout_logprobs` (the engine, while sampling) and `ref_logprobs` (the reference policy).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with a checkable answer."""

    id: str
    """Stable: the same problem has the same id in every run, whatever the order of the data."""
    messages: tuple[Message, ...]
    answer: str
    """What the verifier compares with; never shown to the model."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """JSON values only: level, subject, the numbers of a Countdown puzzle ..."""

    @property
    def prompt_text(self) -> str:
        """All messages as one text; their roles are named where there are several."""
        if len(self.messages) == 1:
            return self.messages[0].content
        return "\n\n".join(f"[{message.role}]\n{message.content}" for message in self.messages)

    @property
    def question(self) -> str:
        """The content of the last message; empty without messages."""
        return self.messages[-1].content if self.messages else ""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A problem with a completion worth imitating: what supervised fine-tuning learns from."""

    problem: Problem
    completion: str
    token_ids: tuple[int, ...] = ()
    """Tokens of a completion that was sampled. Empty: the text has to be encoded."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A problem as the model sees it."""

    problem: Problem
    token_ids: tuple[int, ...]


class Finish(StrEnum):
    """Why a rollout ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Rollout:
    """One completion as the engine sampled it."""

    token_ids: tuple[int, ...]
    """The completion alone, with its stop token where one was sampled."""
    rollout_logprobs: tuple[float, ...]
    """Of each token, under the whole vocabulary at the sampling temperature, also where sampling was truncated."""
    text: str
    """Decoded without special tokens."""
    finish: Finish
    policy_version: int
    """How many updates the weights had seen when this was sampled."""


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts of one prompt, which are compared with each other."""

    prompt: Prompt
    rollouts: tuple[Rollout, ...]


class Verdict(StrEnum):
    """What a verifier found."""

    CORRECT = "correct"
    WRONG = "wrong"
    UNPARSED = "unparsed"
    """No answer could be found in the completion."""
    ERROR = "error"
    """The verifier raised or died. This is not a wrong answer: it is left out of the mean and the loss."""
    TIMED_OUT = "timed_out"
    """The verifier ran out of time: an error that is counted separately."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a verifier says about one completion."""

    reward: float
    verdict: Verdict
    parts: Mapping[str, float] = field(default_factory=dict)
    """Named terms whose sum is the reward, before any weighting."""
    verifier: str = ""
    """Name and version of what scored it, as in "countdown/1"."""
    detail: str = ""
    """For people: what was extracted, or why the verifier failed."""
    process: float | None = None
    """Score of the reasoning, from 0 to 1. None without a process scorer, or if it had nothing to judge."""

    @property
    def is_error(self) -> bool:
        """Whether the verifier failed, so that the score says nothing about the completion."""
        return self.verdict in (Verdict.ERROR, Verdict.TIMED_OUT)


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A group with its scores and, once all groups of the step are in, its advantages."""

    group: Group
    scores: tuple[Score, ...]
    rewards: tuple[float, ...]
    """What the learner sees: the scores' parts after weights, annealing and length penalties."""
    advantages: tuple[float, ...]
    """One per rollout; 0.0 for a rollout whose score is an error."""
    has_signal: bool
    """Whether the rewards differ; read from the rewards, because advantages are rounded."""

    @property
    def pass_rate(self) -> float | None:
        """Share of correct rollouts among those that could be judged; None if none could."""
        judged = [score.verdict is Verdict.CORRECT for score in self.scores if not score.is_error]
        return sum(judged) / len(judged) if judged else None


@dataclass(frozen=True, slots=True)
class TokenTrace:
    """What a step did to each token of one rollout."""

    pieces: tuple[str, ...]
    """The text of each token. A character of several tokens is with the first of them."""
    logprobs: tuple[float, ...]
    """Under the policy before the step's updates."""
    ratios: tuple[float, ...]
    """Probability after the step's updates / before."""
    divergences: tuple[float, ...] | None
    """k3 estimate of the KL from the reference, after the updates; None without a reference."""
    entropies: tuple[float, ...]
    """In nats, after the updates."""


@dataclass(frozen=True, slots=True)
class GroupTrace:
    problem_id: str
    rollouts: tuple[TokenTrace | None, ...]
    """In the order of the group; None for a rollout that the step did not learn from."""


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """One optimizer update."""

    loss: float
    grad_norm: float
    is_finite: bool
    """False: the update was skipped."""
    learning_rate: float
    num_tokens: int
    """Completion tokens with a non-zero weight."""
    means: Mapping[str, float] = field(default_factory=dict)
    """Per-token means (and maxima) over the update, by metric name."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One line of metrics.jsonl."""

    step: int
    """Counts over all stages of the run, from 1."""
    stage: str
    stage_step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class EvalRecord:
    """One line of evals.jsonl: the policy on the held-out problems."""

    step: int
    stage: str
    pass_at_1: float
    """Mean over problems of the share of correct completions; errors are left out."""
    low: float
    """The 95 % interval of pass_at_1 ..."""
    high: float
    """... over problems."""
    num_problems: int
    rollouts_per_problem: int
    temperature: float
    mean_reward: float
    mean_tokens: float
    truncated_share: float
    unparsed_share: float
    error_share: float
    timed_out_share: float
    seconds: float


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How an engine samples tokens. The defaults sample from the policy itself."""

    max_new_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    min_p: float = 0.0
    stop_strings: Sequence[str] = ()
