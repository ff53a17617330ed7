"""The longest batch first: what a stage may need of the GPU's memory, tried before its first step.

Completions are short at first and long later, so a run that cannot fit would find out hours in. Here the largest
microbatch that the stage can make goes through forward and backward once, with nothing learned from it. If memory does
not suffice, smaller ones are tried until one fits, and the error says which.

What it does not do: try the engine's cache, which sizes itself by the memory that there is. Where memory runs out all
the same, since other programs took it or sequences were longer than any before, the error says what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from groupwise.config import ConfigError, RlStage, Stage
from groupwise.data.batch import Example
from groupwise.models.policy import Policy


class DoesNotFit(ConfigError):
    """The message says what to change, and to what."""


class OutOfMemory(RuntimeError):
    """In the middle of a run, which can be resumed. The message says what to do."""


def rehearse(policy: Policy, *, stage: str, prompt_tokens: int, new_tokens: int, max_tokens: int) -> None:
    """Refuse a stage whose longest microbatch does not fit. On a CPU there is nothing to try."""
    if policy.device.type != "cuda":
        return
    length = prompt_tokens + new_tokens
    if _fits(policy, prompt_tokens, new_tokens, max_tokens):
        return
    if not policy.can_abandon:
        raise DoesNotFit(refusal(stage, prompt_tokens, new_tokens, max_tokens, None))
    fitting = 0
    smaller = max_tokens // 2
    while smaller >= length and not fitting:
        fitting = smaller if _fits(policy, prompt_tokens, new_tokens, smaller) else 0
        smaller //= 2
    raise DoesNotFit(refusal(stage, prompt_tokens, new_tokens, max_tokens, fitting))


def refusal(stage: str, prompt_tokens: int, new_tokens: int, max_tokens: int, fitting: int | None) -> str:
    """`fitting`: the largest that fits of those that were tried, 0 for none, None where none could be tried."""
    length = prompt_tokens + new_tokens
    rows = max(1, max_tokens // length)
    lines = [
        f"stage {stage}: its longest microbatch does not fit into the GPU's memory: {rows} × ({prompt_tokens} prompt + "
        f"{new_tokens} new) = {rows * length:,} tokens, with microbatch_tokens = {max_tokens:,}."
    ]
    if fitting is None:
        lines.append(
            "Smaller ones were not tried: among several ranks this torch cannot go on after a pass that failed "
            f"(2.13 can). Try microbatch_tokens = {max(length, max_tokens // 2):,}, with the same gradient; "
            "see `groupwise plan`."
        )
    elif fitting:
        lines.append(f"microbatch_tokens = {fitting:,} fits; the gradient is the same.")
    else:
        lines.append(
            f"Even a single sequence of {length:,} tokens does not. Set model.gradient_checkpointing = true, train "
            "adapters (model.lora), or lower sampling.max_new_tokens."
        )
    return "\n".join(lines)


def ran_out(stage: Stage, index: int, step: int, saved: str | None, run_dir: Path, cause: Exception) -> str:
    """`step`: the one that did not end. `saved`: the newest checkpoint."""
    seen = str(cause).split(" Of the allocated memory")[0].rstrip(".")
    tried = " Its longest microbatch had fitted before the first step." if isinstance(stage, RlStage) else ""
    smaller = f"--set stages.{index}.microbatch_tokens={max(1, stage.microbatch_tokens // 2)}"
    lines = [
        f"step {step}, stage {stage.name}: the GPU's memory ran out: {seen}.{tried}",
        "If other programs have much of it, let them end first. To need less, start anew with "
        f"{smaller}, which gives the same gradient; `groupwise plan` says where memory goes.",
        "Nothing was saved yet." if saved is None else f"{saved} is saved: groupwise train --resume {run_dir}",
    ]
    return "\n".join(lines)


def _fits(policy: Policy, prompt_tokens: int, new_tokens: int, max_tokens: int) -> bool:
    """Whether it does on all ranks: they go on, or give up, together."""
    return all(policy.world.gather(_fits_here(policy, prompt_tokens, new_tokens, max_tokens)))


def _fits_here(policy: Policy, prompt_tokens: int, new_tokens: int, max_tokens: int) -> bool:
    rows = max(1, max_tokens // (prompt_tokens + new_tokens))
    # Prompts that differ: of equal ones a pack would hold but one.
    prompts = [tuple(row >> 2 * place & 3 for place in range(prompt_tokens)) for row in range(rows)]
    examples = [Example(prompt_ids, (1,) * new_tokens) for prompt_ids in prompts]
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(policy.device)
    # Whatever dropout draws here must not change what it draws later.
    with torch.random.fork_rng(devices=[policy.device]):
        try:
            _learn_nothing(policy, examples, max_tokens)
        except torch.OutOfMemoryError:
            return False
        finally:
            policy.abandon()
            peak = torch.cuda.max_memory_allocated(policy.device)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(policy.device)  # the steps have peaks of their own
    free, total = torch.cuda.mem_get_info(policy.device)
    allowed = total * torch.cuda.get_per_process_memory_fraction(policy.device)
    room = min(torch.cuda.memory_allocated(policy.device) + free, allowed)
    # The optimizer takes its moments at its first step.
    return peak + policy.missing_optimizer_bytes() <= room


def _learn_nothing(policy: Policy, examples: Sequence[Example], max_tokens: int) -> None:
    policy.begin_gradients()
    with policy.training():
        for microbatch in policy.microbatches(examples, [0.0] * len(examples), max_tokens):
            logprobs, _ = policy.logprobs(microbatch, 1.0)
            policy.backward((logprobs * microbatch.weights).sum())
