"""How fast the policy learns: tokens per second, share of the device's peak (MFU), memory, for one update alone.

The sequences are made up, of lengths drawn evenly up to the longest, with random advantages. They go through the
real `update_policy` with GRPO's loss, as in a step with one update: old logprobs are not needed. There is no reference
policy either; its term in the loss is a few operations per token.

MFU is 6 · N · tokens/s over the peak, the usual convention: 2 N for the forward pass and 4 N for the backward pass of a
token, N being the parameters that it is multiplied with. Only tokens that are computed count there: the prompt of a
group once. Attention and recomputing are not counted. The head is counted
for all tokens, though prompts do not go through it.
"""

from __future__ import annotations

import random
import time
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from groupwise.bench.engine_speed import SHAPES, make_shape, model_at, synchronize
from groupwise.config import ConfigError, LoraConfig, RlStage, make_recipe
from groupwise.data.batch import Example, Update, weigh
from groupwise.data.pack import Pack
from groupwise.models.load import LoadedModel, load_model, recompute_activations, set_training
from groupwise.models.lora import add_lora
from groupwise.models.policy import Policy
from groupwise.models.tiny import make_tokenizer
from groupwise.training.grpo import policy_loss
from groupwise.training.update import update_policy

PEAK_TFLOPS = 790.0
"""Of a GPU where none is given: bf16 products on an H200."""


class UpdateSkipped(RuntimeError):
    """An update whose loss or gradient was not finite: the optimizer did nothing, and the time is not that of one."""


@dataclass(frozen=True, slots=True)
class UpdateWork:
    """What is to be measured."""

    model: str = "smollm2-135m"
    """A name in SHAPES, or a path."""
    sequences: int = 64
    longest: int = 1024
    """Tokens of the longest sequence that may be drawn, prompt included."""
    prompt_tokens: int = 128
    group: int = 1
    """So many sequences have one prompt."""
    microbatch_tokens: int = 16384
    checkpointing: Literal[False, True, "mlp"] = False
    """As model.gradient_checkpointing: of whole layers, or of their feed-forward parts."""
    lora: int | None = None
    """Rank of the adapters; None trains all weights."""
    updates: int = 3
    peak_tflops: float | None = None
    """What MFU is a share of; None is PEAK_TFLOPS on a GPU, and no MFU on a CPU."""

    def __post_init__(self) -> None:
        lowest = {"sequences": 1, "prompt_tokens": 1, "group": 1, "microbatch_tokens": 1, "updates": 2}
        for name, least in lowest.items():
            if getattr(self, name) < least:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: must be at least {least}")
        if self.longest <= self.prompt_tokens:
            raise ConfigError(
                f"--longest {self.longest}: counts the prompt, so that it must be above --prompt-tokens "
                f"{self.prompt_tokens}"
            )
        if self.checkpointing not in (False, True, "mlp"):
            raise ConfigError(
                f"--checkpointing {self.checkpointing}: either alone, for whole layers, or with mlp, for their "
                "feed-forward parts"
            )
        if self.lora is not None and self.lora < 1:
            raise ConfigError(f"--lora {self.lora}: a rank of at least 1; leave it out to train all weights")
        if self.peak_tflops is not None and self.peak_tflops <= 0:
            raise ConfigError(f"--peak-tflops {self.peak_tflops:g}: must be above 0")


@dataclass(frozen=True, slots=True)
class UpdateTiming:
    work: UpdateWork
    device: str
    tokens: int
    """Of all sequences, prompts included."""
    computed_tokens: int
    """Those that go through the model: a prompt of several sequences once, where they are packed."""
    num_parameters: int
    """Those that multiply: the input embedding is left out where it is not the head as well."""
    first_s: float
    """The first update, with all set-up: compiling, allocating, AdamW's moments."""
    update_s: float
    """Mean of the others."""
    tokens_per_s: float
    peak_tflops: float | None
    mfu: float | None
    """6 · num_parameters · computed tokens per second over the peak; None where no peak is known."""
    peak_bytes: int | None
    """Largest of the updates after the first; None on a CPU."""
    before_bytes: int | None
    """What of it is there before an update: weights, their fp32 masters and AdamW's moments."""

    @property
    def note(self) -> str:
        """What the formula of MFU hides here; "" where it hides nothing."""
        less, more = self.work.lora is not None, bool(self.work.checkpointing)
        if self.mfu is None or not (less or more):
            return ""
        is_part = self.work.checkpointing == "mlp"
        again = "some activations are" if is_part else "activations are"
        reasons = ["frozen weights need no gradient of their own"] * less + [f"{again} computed again"] * more
        most = 6 - 2 * less + 2 * more
        computed = f"between {most - 2} N and {most} N" if is_part else f"about {most} N"
        cancel = less and more and not is_part
        verdict = "the two cancel" if cancel else "it flatters" if less else "the device does more than it says"
        return f"MFU counts 6 N all the same; {' and '.join(reasons)}, {computed} in all, so that {verdict}"

    def to_json(self) -> dict[str, Any]:
        """Flat, with the peak that was used."""
        table = asdict(self)
        return table.pop("work") | table | {"note": self.note}

    def __str__(self) -> str:
        work = self.work
        lines = [
            f"{work.model}, {self.device}: {work.sequences} sequences of {work.prompt_tokens + 1} to {work.longest} "
            f"tokens, {self.tokens:,} in all, {self.computed_tokens:,} computed",
            f"{'tokens/s':<14}{self.tokens_per_s:>9,.0f}",
            f"{'update':<14}{self.update_s:>9.3f} s   first {self.first_s:.3f} s",
        ]
        if self.mfu is not None and self.peak_tflops is not None:
            parts = f"of {self.peak_tflops:g} TFLOP/s, {self.num_parameters / 1e6:,.1f} M parameters"
            lines.append(f"{'MFU':<14}{self.mfu:>9.1%}     {parts}")
        if self.peak_bytes is not None and self.before_bytes is not None:
            before = f"before the update {self.before_bytes / 2**30:.2f} GiB"
            lines.append(f"{'peak memory':<14}{self.peak_bytes / 2**30:>9.2f} GiB {before}")
        if self.note:
            lines.append(f"note: {self.note}")
        return "\n".join(lines)


def bench_update(work: UpdateWork) -> UpdateTiming:
    stage = default_stage()
    policy = make_policy(work)
    if work.longest > policy.context_tokens:
        raise ConfigError(f"--longest {work.longest}: {work.model} was made for {policy.context_tokens} positions")
    policy.begin_stage(stage.optimizer, keep_reference=False)
    examples = make_examples(work, policy.model.config.get_text_config().vocab_size)
    update = weigh(examples, stage.loss.weights)
    first_s = _time(policy, stage, update, work.microbatch_tokens)
    is_gpu = policy.device.type == "cuda"
    # After the first update, so that AdamW's moments count as there before.
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
    """A stage of GRPO with the keys that a recipe has to give, and nothing else."""
    stage = {"algorithm": "grpo", "steps": 1, "problems_per_step": 1, "rollouts_per_problem": 2}
    table = {"name": "bench", "model": {"path": "tiny-qwen3"}, "task": {"name": "countdown"}, "stages": [stage]}
    (made,) = make_recipe(table).stages
    assert isinstance(made, RlStage)
    return made


def make_policy(work: UpdateWork) -> Policy:
    """As `load_policy` makes one, but from a shape too."""
    loaded = _load_shape(work.model) if work.model in SHAPES else load_model(model_at(work.model), seed=0)
    recompute_activations(loaded.model, work.checkpointing)
    if work.lora is not None:
        add_lora(loaded.model, LoraConfig(rank=work.lora), seed=0)
    return Policy(loaded, ema_decay=0.0)


def _load_shape(name: str) -> LoadedModel:
    model = make_shape(name)
    set_training(model, False)
    # A shape comes without a tokenizer, and token ids are all that an update reads.
    return LoadedModel(model, make_tokenizer(), model.config.max_position_embeddings, model.device, model.dtype)


def make_examples(work: UpdateWork, vocab: int) -> list[Example]:
    """Token ids and lengths are even, advantages normal; the same at each call."""
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
                # The loss measures its distance from the engine's logprobs, whatever these are.
                rollout_logprobs=torch.zeros(size),
            )
        )
    return examples


def num_computed(policy: Policy, update: Update, max_tokens: int) -> int:
    """Tokens that go through the model; padding does not count."""
    total = 0
    for microbatch in policy.microbatches(update.examples, update.token_weights, max_tokens):
        inputs = microbatch.inputs
        total += len(inputs.token_ids) if isinstance(inputs, Pack) else int(inputs.attention_mask.sum())
    return total


def num_multiplied(model: Any) -> int:
    """Parameters that a token is multiplied with. Looking up a row of the embedding is no product."""
    total = sum(parameter.numel() for parameter in model.parameters())
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    is_tied = head is not None and head.weight is embedding.weight
    return total if is_tied else total - embedding.weight.numel()


def _time(policy: Policy, stage: RlStage, update: Update, max_tokens: int) -> float:
    synchronize()
    start = time.perf_counter()
    stats = update_policy(
        policy,
        update,
        policy_loss(stage, beta=0.0),
        temperature=stage.sampling.temperature,
        learning_rate=stage.optimizer.learning_rate,
        max_tokens=max_tokens,
    )
    synchronize()
    seconds = time.perf_counter() - start
    if not stats.is_finite:
        raise UpdateSkipped(f"the update was skipped: loss {stats.loss}, norm of the gradient {stats.grad_norm}")
    return seconds
