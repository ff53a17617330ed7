"""Guards: checks that a model keeps its abilities outside the task.

They measure perplexity on general text (general_text.py) and format-following on a small general set
(general_format.py), at the start of a run and with each held-out evaluation. `judge` compares the two readings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

from groupwise.base.stats import bootstrap_interval, mean
from groupwise.config import ConfigError, GuardsConfig
from groupwise.data.batch import Example
from groupwise.engines.engine import Engine
from groupwise.evals.general_format import GeneralFormat
from groupwise.evals.general_text import PASSAGES
from groupwise.evals.held_out import make_requests, scored_groups
from groupwise.models.chat import Prompts, check_fits
from groupwise.models.policy import Policy
from groupwise.runs.results import Estimate
from groupwise.scoring.scorer import LocalScorer, ScoreFunction
from groupwise.types import SamplingParams

MAX_TOKENS = 4096
"""Passage tokens that go through the model at once. Only affects memory."""
FORMAT_TOKENS = 64
"""Maximum length of a completion of a format request. All requests need less."""


def check_guards_fit(config: GuardsConfig, prompts: Prompts, context_tokens: int) -> None:
    """Raise a ConfigError if the model's context is too short for the format requests."""
    if not config.max_format_drop:
        return
    try:
        check_fits(
            [prompts[problem] for problem in GeneralFormat().problems("held_out")], FORMAT_TOKENS, context_tokens
        )
    except ConfigError as error:
        raise ConfigError(f"guards: {error}, or set guards.max_format_drop = 0") from None


GuardReadings = Mapping[str, float]
"""`perplexity` on general text and `format_share` of general requests, those that are guarded."""


def read_guards(
    config: GuardsConfig,
    policy: Policy,
    engine: Engine,
    interruptible: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> GuardReadings:
    """Measure what is guarded, with the current weights."""
    readings = {}
    with interruptible():
        if config.max_perplexity_ratio:
            readings["perplexity"] = perplexity_estimate(policy).value
        if config.max_format_drop:
            readings["format_share"] = _format_share(policy, engine)
    return readings


def judge(config: GuardsConfig, before: GuardReadings, now: GuardReadings) -> list[str]:
    """Return a sentence for each broken guard."""
    broken = []
    if config.max_perplexity_ratio:
        old, new = before["perplexity"], now["perplexity"]
        # Written so that NaN counts as the worst perplexity.
        if not new <= config.max_perplexity_ratio * old:
            broken.append(
                f"perplexity on general text rose from {old:.2f} to {new:.2f}, more than "
                f"{config.max_perplexity_ratio:g} times as much (guards.max_perplexity_ratio)"
            )
    if config.max_format_drop:
        old, new = before["format_share"], now["format_share"]
        if old - new > config.max_format_drop:
            broken.append(
                f"the share of followed general requests fell from {old:.1%} to {new:.1%}, by more than "
                f"{config.max_format_drop:.1%} (guards.max_format_drop)"
            )
    return broken


def perplexity_estimate(policy: Policy) -> Estimate:
    """Return exp of the mean over passages of their nats per token, each conditioned on its first token.

    A passage that exceeds the model's context is truncated. The interval is a bootstrap over passages.
    """
    examples = []
    for passage in PASSAGES:
        first, *rest = policy.tokenizer.encode(passage, add_special_tokens=False)[: policy.context_tokens]
        examples.append(Example(prompt_ids=(first,), completion_ids=tuple(rest)))
    logprobs = policy.old_logprobs(examples, 1.0, MAX_TOKENS)
    nats = [-float(row.double().mean()) for row in logprobs]
    low, high = bootstrap_interval(nats)
    return Estimate(_exp(mean(nats)), _exp(low), _exp(high), len(nats), "bootstrap")


def _exp(nats: float) -> float:
    return math.exp(nats) if nats < 700 else math.inf


def _format_share(policy: Policy, engine: Engine) -> float:
    """Return the share of followed requests. Greedy, so readings of the same weights are equal."""
    task, prompts = GeneralFormat(), Prompts(policy.tokenizer)
    requests = make_requests([prompts[problem] for problem in task.problems("held_out")], 1, 0)
    scorer = LocalScorer(ScoreFunction(task))
    sampling = SamplingParams(max_new_tokens=FORMAT_TOKENS, temperature=0.0)
    shares = [scored.pass_rate for scored in scored_groups(engine, scorer, requests, sampling, policy)]
    return mean([share for share in shares if share is not None])
