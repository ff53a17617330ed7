"""A rehearsal of a stage's largest microbatch before its first step, to find out whether it fits into GPU memory.

Completions are short at first and long later, so a run that does not fit might fail after hours. Here the largest
microbatch that the stage can make goes through forward and backward once, and nothing is learned from it. If memory
does not suffice, smaller ones are tried until one fits, and the error names it.

The engine's cache is not rehearsed: its size depends on the free memory. If memory still runs out, because other
programs took it or sequences became longer, the error says what to do.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from groupwise.config import ConfigError, RlStage
from groupwise.data.batch import Example
from groupwise.models.policy import Policy


class DoesNotFit(ConfigError):
    """A stage does not fit into memory. The message says what to change, and to what value."""


def rehearse(policy: Policy, stage: RlStage, prompt_tokens: int) -> None:
    """Refuse a stage whose largest microbatch does not fit. Do nothing on a CPU.

    `prompt_tokens` is the length of the longest prompt.
    """
    if policy.device.type != "cuda":
        return
    new_tokens, max_tokens = stage.sampling.max_new_tokens, stage.microbatch_tokens
    length = prompt_tokens + new_tokens
    if _fits(policy, stage, prompt_tokens, max_tokens):
        return
    if not policy.can_abandon:
        raise DoesNotFit(refusal(stage, prompt_tokens, None))
    smaller = max_tokens // 2
    while smaller >= length and not _fits(policy, stage, prompt_tokens, smaller):
        smaller //= 2
    fitting = smaller if smaller >= length else 0
    raise DoesNotFit(refusal(stage, prompt_tokens, fitting))


def refusal(stage: RlStage, prompt_tokens: int, fitting: int | None) -> str:
    """Return the error message. `fitting`: the largest size that fits, 0 if none does, None if none could be tried."""
    new_tokens, max_tokens = stage.sampling.max_new_tokens, stage.microbatch_tokens
    length = prompt_tokens + new_tokens
    rows = max(1, max_tokens // length)
    lines = [
        f"stage {stage.name}: its largest microbatch does not fit into GPU memory: {rows} × ({prompt_tokens} prompt + "
        f"{new_tokens} new) = {rows * length:,} tokens, with microbatch_tokens = {max_tokens:,}."
    ]
    if fitting is None:
        lines.append(
            "Smaller ones were not tried: with several ranks this version of torch cannot continue after a failed pass "
            f"(2.13 can). Try microbatch_tokens = {max(length, max_tokens // 2):,}, with the same gradient; "
            "see `groupwise plan`."
        )
    elif fitting:
        lines.append(f"microbatch_tokens = {fitting:,} fits; the gradient is the same.")
    else:
        lines.append(
            f"Even a single sequence of {length:,} tokens does not fit. Set model.gradient_checkpointing = true, train "
            "adapters (model.lora), or lower sampling.max_new_tokens."
        )
    return "\n".join(lines)


def _fits(policy: Policy, stage: RlStage, prompt_tokens: int, max_tokens: int) -> bool:
    """Return whether it fits on all ranks, which continue or fail together."""
    return all(policy.world.gather(_fits_here(policy, stage, prompt_tokens, max_tokens)))


def _fits_here(policy: Policy, stage: RlStage, prompt_tokens: int, max_tokens: int) -> bool:
    new_tokens = stage.sampling.max_new_tokens
    rows = max(1, max_tokens // (prompt_tokens + new_tokens))
    # Different prompts, because a pack stores equal ones only once.
    prompts = [tuple(row >> 2 * place & 3 for place in range(prompt_tokens)) for row in range(rows)]
    examples = [Example(prompt_ids, (1,) * new_tokens) for prompt_ids in prompts]
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(policy.device)
    # Random numbers that dropout uses here must not change later ones.
    with torch.random.fork_rng(devices=[policy.device]):
        try:
            _learn_nothing(policy, examples, max_tokens, has_bonus=stage.entropy.bonus > 0)
        except torch.OutOfMemoryError:
            return False
        finally:
            policy.abandon()
            peak = torch.cuda.max_memory_allocated(policy.device)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(policy.device)  # the steps measure their own peaks
    free, total = torch.cuda.mem_get_info(policy.device)
    allowed = total * torch.cuda.get_per_process_memory_fraction(policy.device)
    room = min(torch.cuda.memory_allocated(policy.device) + free, allowed)
    # The optimizer allocates its moments at its first step.
    return peak + policy.optimizer.missing_bytes <= room


def _learn_nothing(policy: Policy, examples: Sequence[Example], max_tokens: int, *, has_bonus: bool) -> None:
    policy.optimizer.begin_gradients()
    with policy.training():
        for microbatch in policy.microbatches(examples, [0.0] * len(examples), max_tokens):
            logprobs, entropies, imbalance = policy.logprobs(microbatch, 1.0)
            # The gradient of entropies needs memory of its own.
            learned = logprobs + entropies if has_bonus else logprobs
            learned = learned if imbalance is None else learned + imbalance
            policy.backward((learned * microbatch.weights).sum())
