"""Several completions of one question, and the best of them: by majority of their answers, or by a verifier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

from groupwise.base.outside import local_path
from groupwise.base.seeds import seed_of
from groupwise.config import ConfigError, ModelConfig
from groupwise.engines.engine import Request
from groupwise.engines.native.native_engine import NativeEngine
from groupwise.evals.subject import open_subject
from groupwise.models.chat import Prompts, check_fits
from groupwise.models.load import load_model
from groupwise.models.policy import Policy
from groupwise.rewards.extract import AnswerMark, final_answer
from groupwise.rewards.math.equality import is_equal
from groupwise.scoring.scorer import PooledScorer, ScoreFunction
from groupwise.tasks.rows import Row
from groupwise.tasks.task import RowScorer, Task
from groupwise.types import Message, Problem, Rollout, SamplingParams, Score, Verdict
from groupwise.workers import Limits

BestOf = Literal["none", "majority", "verifier"]
MAX_NEW_TOKENS = 512
"""Tokens per completion where the caller and the context set no limit."""
MARKS: tuple[AnswerMark, ...] = ("boxed", "hashes", "tag", "final", "number")


@dataclass(frozen=True, slots=True)
class Sampled:
    rollout: Rollout
    answer: str | None
    """The completion's answer, by the first mark found in it."""
    score: Score | None
    """Set if a verifier was used."""

    def to_json(self) -> dict[str, Any]:
        table: dict[str, Any] = {
            "completion": self.rollout.text,
            "answer": self.answer,
            "finish": self.rollout.finish.value,
            "tokens": len(self.rollout.token_ids),
            "logprob": sum(self.rollout.rollout_logprobs),
        }
        if self.score is not None:
            table |= {"verdict": self.score.verdict.value, "reward": self.score.reward}
        return table


@dataclass(frozen=True, slots=True)
class Choice:
    index: int
    """Index of the chosen completion."""
    why: str


def sample(
    model: str,
    question: str,
    *,
    n: int,
    temperature: float = 1.0,
    max_new_tokens: int | None = None,
    seed: int = 0,
    checkpoint: str | None = None,
) -> list[Rollout]:
    """Sample `n` completions of a question, each from its own random stream.

    `model` is anything that `groupwise eval` takes; `checkpoint` is for a run directory. By default a completion is as
    long as the context allows, up to MAX_NEW_TOKENS.
    """
    if n < 1:
        raise ConfigError(f"--n {n}: must be at least 1")
    policy, stop_strings = _open(model, checkpoint, seed)
    prompt = Prompts(policy.tokenizer)[Problem("question", (Message("user", question),), "")]
    if max_new_tokens is None:
        max_new_tokens = max(1, min(MAX_NEW_TOKENS, policy.context_tokens - len(prompt.token_ids)))
    check_fits([prompt], max_new_tokens, policy.context_tokens)
    sampling = SamplingParams(max_new_tokens=max_new_tokens, temperature=temperature, stop_strings=stop_strings)
    engine = NativeEngine(policy.model, policy.tokenizer, policy.stop_token_ids, n)
    request = Request(prompt, tuple(seed_of(seed, "sample", question, number) for number in range(n)))
    ((_, group),) = engine.generate([request], sampling, 0)
    return list(group.rollouts)


def _open(model: str, checkpoint: str | None, seed: int) -> tuple[Policy, tuple[str, ...]]:
    """Return the policy, and the strings that end a completion of it."""
    path = local_path(model)
    if checkpoint is None and (not path.is_dir() or (path / "config.json").is_file()):
        return Policy(load_model(ModelConfig(path=model), seed), ema_decay=0.0), ()
    subject = open_subject(model, checkpoint)
    return subject.policy, subject.recipe.evaluation.stop_strings if subject.recipe else ()


def judge(rollouts: Sequence[Rollout], question: str, task: Task | None, fields: Mapping[str, Any]) -> list[Sampled]:
    """Extract each rollout's answer and, with a task, score it on the problem that `fields` describe."""
    scores: list[Score | None] = [None] * len(rollouts)
    if task is not None:
        if not isinstance(task, RowScorer):
            raise ConfigError(f"--task: {type(task).__name__} cannot score a single question (it has no bare_problem)")
        problem = task.bare_problem(Row({"question": question, "problem": question, **fields}, "--fields"))
        with closing(PooledScorer(ScoreFunction(task), 2, Limits())) as scorer:
            scores = list(scorer.scores(scorer.submit(problem, [rollout.text for rollout in rollouts])))
    found = [final_answer(rollout.text, MARKS) for rollout in rollouts]
    return [
        Sampled(rollout, answer.text.strip() if answer else None, score)
        for rollout, answer, score in zip(rollouts, found, scores, strict=True)
    ]


def choose(sampled: Sequence[Sampled], best_of: BestOf) -> Choice | None:
    """Return the completion to show; None if none has an answer or none is correct.

    To pick by the verifier, the completions must have scores.
    """
    if best_of == "none":
        return None
    if best_of == "verifier":
        right = [i for i, entry in enumerate(sampled) if entry.score and entry.score.verdict is Verdict.CORRECT]
        return Choice(right[0], f"{len(right)} of {len(sampled)} are judged correct") if right else None
    votes: list[list[int]] = []
    for index, entry in enumerate(sampled):
        if entry.answer is None:
            continue
        same = next((vote for vote in votes if is_equal(sampled[vote[0]].answer or "", entry.answer)), None)
        if same is None:
            votes.append([index])
        else:
            same.append(index)
    if not votes:
        return None
    # The largest group; among equals, the one that appeared first.
    best = max(votes, key=len)
    return Choice(best[0], f"{len(best)} of {len(sampled)} give the answer {sampled[best[0]].answer!r}")
