"""Speed of a policy update: tokens per second, share of the device's peak (MFU), memory.

The sequences are random, with lengths sampled uniformly up to the longest, and have random advantages. They go through
the real `update_policy` with GRPO's loss, as in a step with one update: old logprobs are not needed. There is no
reference policy either; its term in the loss is a few operations per token.

MFU is 6 · N · tokens/s over the peak, the usual convention: 2 N for the forward pass and 4 N for the backward pass of a
token, N being the parameters that it is multiplied with. Only computed tokens count: the prompt of a group counts
once. Attention and recomputation are not counted. The head is counted for all tokens, although prompts skip it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

import torch

from groupwise.base.text_layout import aligned, percent
from groupwise.bench.engine_speed import SHAPES, make_shape, model_at, timed
from groupwise.config import ConfigError, LoraConfig, RlStage, make_recipe
from groupwise.config.build import require
from groupwise.data.batch import Example, Update, weigh
from groupwise.data.pack import Pack
from groupwise.models.load import LoadedModel, load_model, recompute_activations, set_training
from groupwise.models.lora import add_lora
from groupwise.models.policy import Policy
from groupwise.models.tiny import make_tokenizer
from groupwise.runs.files import plain
from groupwise.training.policy_loss import policy_loss
from groupwise.training.update import update_policy

PEAK_TFLOPS = 790.0
"""Default peak of a GPU: bf16 products on an H200."""


class UpdateSkipped(RuntimeError):
    """The update was skipped because its loss or gradient was not finite, so its time means nothing."""


@dataclass(frozen=True, slots=True)
class UpdateWork:
    """The update to measure."""

    model: str = "smollm2-135m"
    """A name in SHAPES, or a path."""
    sequences: int = 64
    longest: int = 1024
    """Maximum tokens of a sequence, prompt included."""
    prompt_tokens: int = 128
    group: int = 1
    """Number of sequences that share a prompt."""
    microbatch_tokens: int = 16384
    checkpointing: Literal[False, True, "mlp"] = False
    """Same as model.gradient_checkpointing: whole layers, or their feed-forward parts."""
    lora: int | None = None
    """Rank of the adapters; None trains all weights."""
    updates: int = 3
    peak_tflops: float | None = None
    """Peak that MFU refers to. None: PEAK_TFLOPS on a GPU, no MFU on a CPU."""

    def __post_init__(self) -> None:
        require(
            self.longest > self.prompt_tokens,
            f"--longest {self.longest}: includes the prompt; must be above --prompt-tokens {self.prompt_tokens}",
        )
        is_known = self.checkpointing in (False, True, "mlp")
        fix = "give no value, for whole layers, or mlp, for feed-forward parts"
        require(is_known, f"--checkpointing {self.checkpointing}: {fix}")


@dataclass(frozen=True, slots=True)
class UpdateTiming:
    work: UpdateWork
    device: str
    tokens: int
    """Total of all sequences, prompts included."""
    computed_tokens: int
    """Tokens that go through the model; packing computes a shared prompt once."""
    num_parameters: int
    """Parameters that multiply: without the input embedding, unless it is also the head."""
    first_s: float
    """Seconds of the first update, including set-up: compilation, allocation, AdamW's moments."""
    update_s: float
    """Mean seconds of the other updates."""
    tokens_per_s: float
    peak_tflops: float | None
    mfu: float | None
    """6 · num_parameters · computed tokens per second / peak; None if the peak is unknown."""
    peak_bytes: int | None
    """Peak memory of the updates after the first; None on a CPU."""
    before_bytes: int | None
    """Memory in use before an update: weights, fp32 masters and AdamW's moments."""

    @property
    def note(self) -> str:
        """How the MFU formula misleads for this work; "" if it does not."""
        less, more = self.work.lora is not None, bool(self.work.checkpointing)
        if self.mfu is None or not (less or more):
            return ""
        is_part = self.work.checkpointing == "mlp"
        again = "some activations are" if is_part else "activations are"
        reasons = ["frozen weights need no gradient"] * less + [f"{again} recomputed"] * more
        most = 6 - 2 * less + 2 * more
        computed = f"between {most - 2} N and {most} N" if is_part else f"about {most} N"
        cancel = less and more and not is_part
        verdict = "the two cancel" if cancel else "MFU is too high" if less else "MFU is too low"
        return f"MFU always counts 6 N; {' and '.join(reasons)}, {computed} in total, so {verdict}"

    def to_json(self) -> dict[str, Any]:
        """Return one flat object; `peak_tflops` is the peak that was used."""
        table: dict[str, Any] = plain(self)
        return table.pop("work") | table | {"note": self.note}

    def __str__(self) -> str:
        work = self.work
        rows = [
            ("tokens/s", f"{self.tokens_per_s:,.0f}", ""),
            ("update", f"{self.update_s:.3f} s", f"first {self.first_s:.3f} s"),
        ]
        if self.mfu is not None and self.peak_tflops is not None:
            parts = f"of {self.peak_tflops:g} TFLOP/s, {self.num_parameters / 1e6:,.1f} M parameters"
            rows.append(("MFU", percent(self.mfu), parts))
        if self.peak_bytes is not None and self.before_bytes is not None:
            before = f"before the update {self.before_bytes / 2**30:.2f} GiB"
            rows.append(("peak memory", f"{self.peak_bytes / 2**30:.2f} GiB", before))
        heading = (
            f"{work.model}, {self.device}: {work.sequences} sequences of {work.prompt_tokens + 1} to {work.longest} "
            f"tokens, {self.tokens:,} in total, {self.computed_tokens:,} computed"
        )
        return "\n".join([heading, *aligned(rows, has_notes=True), *([f"note: {self.note}"] if self.note else [])])


def bench_update(work: UpdateWork) -> UpdateTiming:
    stage = default_stage()
    policy = make_policy(work)
    if work.longest > policy.context_tokens:
        raise ConfigError(f"--longest {work.longest}: {work.model} has only {policy.context_tokens} positions")
    policy.begin_stage(stage.optimizer, keep_reference=False)
    examples = make_examples(work, policy.model.config.get_text_config().vocab_size)
    update = weigh(examples, stage.loss.weights)
    first_s = _time(policy, stage, update, work.microbatch_tokens)
    is_gpu = policy.device.type == "cuda"
    # Read after the first update, so that AdamW's moments are included.
    before_bytes = torch.cuda.memory_allocated(policy.device) if is_gpu else None
    if is_gpu:
        policy.take_peak_bytes()
    others = [_time(policy, stage, update, work.microbatch_tokens) for _ in range(work.updates - 1)]
    peak_bytes = policy.take_peak_bytes() if is_gpu else None
    update_s = sum(others) / len(others)
    tokens = sum(len(example.prompt_ids) + len(example.completion_ids) for example in examples)
    computed = num_computed(policy, update, work.microbatch_tokens)
    num_parameters = num_multiplied(policy.model)
    peak_tflops = work.peak_tflops or (PEAK_TFLOPS if is_gpu else None)
    return UpdateTiming(
        work=work,
        device=policy.device_name,
        tokens=tokens,
        computed_tokens=computed,
        num_parameters=num_parameters,
        first_s=first_s,
        update_s=update_s,
        tokens_per_s=tokens / update_s,
        peak_tflops=peak_tflops,
        mfu=None if peak_tflops is None else 6 * num_parameters * computed / update_s / (1e12 * peak_tflops),
        peak_bytes=peak_bytes,
        before_bytes=before_bytes,
    )


def default_stage() -> RlStage:
    """Return a GRPO stage with the required keys only; all others have their defaults."""
    stage = {"algorithm": "grpo", "steps": 1, "problems_per_step": 1, "rollouts_per_problem": 2}
    table = {"name": "bench", "model": {"path": "tiny-qwen3"}, "task": {"name": "countdown"}, "stages": [stage]}
    (made,) = make_recipe(table).stages
    assert isinstance(made, RlStage)
    return made


def make_policy(work: UpdateWork) -> Policy:
    """Make a policy like `load_policy` does, also from a shape."""
    loaded = _load_shape(work.model) if work.model in SHAPES else load_model(model_at(work.model), seed=0)
    recompute_activations(loaded.model, work.checkpointing)
    if work.lora is not None:
        add_lora(loaded.model, LoraConfig(rank=work.lora), seed=0)
    return Policy(loaded, ema_decay=0.0)


def _load_shape(name: str) -> LoadedModel:
    model = make_shape(name)
    set_training(model, False)
    # A shape has no tokenizer. Any will do: an update reads token ids only.
    return LoadedModel(model, make_tokenizer(), model.config.max_position_embeddings, model.device, model.dtype)


def make_examples(work: UpdateWork, vocab: int) -> list[Example]:
    """Sample token ids and lengths uniformly and advantages from a normal distribution; every call returns the same."""
    dice = random.Random(0)
    examples = []
    prompt_ids: tuple[int, ...] = ()
    for index in range(work.sequences):
        size = dice.randint(1, work.longest - work.prompt_tokens)
        if index % work.group == 0:
            prompt_ids = tuple(dice.randrange(vocab) for _ in range(work.prompt_tokens))
        examples.append(
            Example(
                prompt_ids,
                tuple(dice.randrange(vocab) for _ in range(size)),
                advantages=torch.full((size,), dice.gauss(0.0, 1.0)),
                # The loss compares with the engine's logprobs; their values do not affect speed.
                rollout_logprobs=torch.zeros(size),
            )
        )
    return examples


def num_computed(policy: Policy, update: Update, max_tokens: int) -> int:
    """Count the tokens that go through the model, padding excluded."""
    total = 0
    for microbatch in policy.microbatches(update.examples, update.token_weights, max_tokens):
        inputs = microbatch.inputs
        if isinstance(inputs, Pack):
            total += len(inputs.token_ids)
        else:
            total += inputs.input_ids.numel() if inputs.attention_mask is None else int(inputs.attention_mask.sum())
    return total


def num_multiplied(model: Any) -> int:
    """Count the parameters that a token is multiplied with. Looking up a row of the embedding is not a product."""
    total = sum(parameter.numel() for parameter in model.parameters())
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    is_tied = head is not None and head.weight is embedding.weight
    return total if is_tied else total - embedding.weight.numel()


def _time(policy: Policy, stage: RlStage, update: Update, max_tokens: int) -> float:
    seconds, stats = timed(
        lambda: update_policy(
            policy,
            update,
            policy_loss(stage, beta=0.0),
            temperature=stage.sampling.temperature,
            learning_rate=stage.optimizer.learning_rate,
            max_tokens=max_tokens,
        )
    )
    if not stats.is_finite:
        raise UpdateSkipped(f"the update was skipped: loss {stats.loss}, gradient norm {stats.grad_norm}")
    return seconds
