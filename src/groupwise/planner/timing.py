"""Time of a step: decode steps from bytes read and products, passes from products, and the rest.

Terms are added, instead of taking the largest: this matches measurements (benchmarks/results, native-engine_h200 and
learner_h200). Fractions of a GPU's peak were measured on an H200, and are assumed for other GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from groupwise.config import RlStage
from groupwise.models.memory_limits import capacity
from groupwise.planner.gpus import MEASURED
from groupwise.planner.stage_memory import is_recorded, usual_pack, weight_bytes
from groupwise.planner.work import Work

LAYER_S = 27.6e-6
"""Fixed seconds per layer of a decode step: 64 to 1,024 sequences of two shapes, extrapolated to none."""
ADAPTER_LAYER_S = 47e-6
"""Additional seconds per layer with adapters: 64 sequences with and without."""
READ_SHARE = 0.9
"""Fraction of the vendor's bandwidth that a copy reaches."""
WIDE_EFFICIENCY = 0.57
"""Maximum fraction of the peak in updates, recomputation of whole layers included."""
NARROW_EFFICIENCY = 3.4e-4
"""Fraction of the peak per element of the hidden size: 0.52 at 1,536 and 0.2 at 576, for updates on an H200.

Narrower products keep a GPU with a lower peak busy.
"""
DECODE_GAIN = 1.19
"""Efficiency of decode steps / that of updates: 1,024 sequences of two shapes."""
SCORE_GAIN = 0.6
"""Efficiency of scoring / that of updates, with the work around the passes."""
ADAPTER_GAIN = 0.6
"""Efficiency of updates of adapters / that of updates of all weights."""
BUS_BYTES_PER_S = 37e9
"""Bandwidth between GPU and host, measured with a reference that changed places with the policy."""
HOST_STEP_BYTES_PER_S = 20e9
"""Memory traffic of AdamW on a host CPU; not measured."""
STEP_REST_S = 0.045
"""Seconds of a step outside its phases."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Measured / planned time on this GPU (`groupwise plan --measure`)."""

    decode: float = 1.0
    update: float = 1.0


def efficiency(work: Work) -> float:
    narrow = NARROW_EFFICIENCY * work.shape.hidden * MEASURED.tflops / work.gpu.tflops
    return min(WIDE_EFFICIENCY, narrow)


def decode_step_s(work: Work, rows: float, context: float) -> float:
    """Return the time of one token for each of `rows` rollouts, with `context` tokens before it on average."""
    shape, gpu = work.shape, work.gpu
    launches = shape.layers * (LAYER_S + (ADAPTER_LAYER_S if work.model.lora else 0.0))
    read = weight_bytes(work) + rows * context * shape.cache_bytes(work.value_bytes)
    if work.model.quantization != "none":
        read += 2 * work.value_bytes * shape.layers * shape.layer_products  # dequantized: written and read
    products = rows * 2 * shape.multiplied / (DECODE_GAIN * efficiency(work) * gpu.flops_per_s)
    return launches + read / (READ_SHARE * gpu.bytes_per_s) + products


def sample_s(work: Work, at_once: int, rollouts: float | None = None) -> float:
    """Return the sampling time of a step. New rollouts enter as others finish."""
    mine = (work.rollouts if rollouts is None else rollouts) / work.ranks
    at_once = max(1, at_once)
    tokens = mine * work.mean_tokens
    # The longest rollout decides. If some wait, the batch is full until the last have entered.
    waiting = tokens / at_once + (work.max_tokens - work.mean_tokens) / 2 if mine > at_once else 0.0
    steps = max(float(work.max_tokens), waiting)
    context = work.prompt_tokens + work.mean_tokens / 2
    prompts = mine / work.group * work.prompt_tokens
    prefill = prompts * 2 * work.shape.multiplied / (DECODE_GAIN * efficiency(work) * work.gpu.flops_per_s)
    return steps * decode_step_s(work, tokens / steps, context) + prefill


def token_flops(work: Work, *, learns: bool) -> float:
    """Return the operations per token in a pass; attention covers the prompt and half of the completion on average."""
    shape, which = work.shape, work.model.gradient_checkpointing
    attention = 4 * shape.layers * shape.query * (work.prompt_tokens + work.mean_tokens / 2)
    forward = 2 * shape.multiplied + attention
    if not learns:
        return forward
    # Frozen weights need no gradient.
    backward = (2 if work.model.lora else 4) * shape.multiplied + 2.5 * attention
    again = {
        False: 0.0,
        "mlp": 2.0 * shape.layers * shape.hidden * 2 * shape.width,
        True: 2.0 * shape.layers * shape.layer_products + attention,
    }
    return forward + backward + again[which]


def pass_tokens(work: Work, pack_tokens: int, *, learns: bool) -> float:
    """Return the tokens of one pass over the step's rollouts on one rank, including padding of recorded packs."""
    tokens = work.computed_tokens / work.ranks
    if not is_recorded(work, pack_tokens, learns=learns):
        return tokens
    return tokens * capacity(pack_tokens) / pack_tokens


def score_s(work: Work, pack_tokens: int) -> float:
    """Return the time for logprobs of the reference, and of the old policy if the engine's cannot be used."""
    stage = work.stage
    if not isinstance(stage, RlStage):
        return 0.0
    passes = stage.uses_reference + (stage.needs_old_logprobs and work.engine.name == "vllm")
    flops = passes * pass_tokens(work, pack_tokens, learns=False) * token_flops(work, learns=False)
    seconds = flops / (SCORE_GAIN * efficiency(work) * work.gpu.flops_per_s)
    if stage.uses_reference and work.model.lora is None:
        # To the GPU and back, read and written each way; over the bus if it lies on the host.
        moved = 4 * weight_bytes(work) / work.ranks
        seconds += moved / BUS_BYTES_PER_S if stage.offloads_reference else 2 * moved / work.gpu.bytes_per_s
    return seconds


def optimizer_s(work: Work) -> float:
    """Return the time of an AdamW step: read and write masters and moments, clear and read sums, write weights."""
    trained = work.trained / work.ranks
    moments = 16 if work.stage.optimizer.moments == "fp32" else 4
    if work.stage.optimizer.offload:
        return trained * (6 / BUS_BYTES_PER_S + (12 + moments) / HOST_STEP_BYTES_PER_S)
    return trained * (8 + moments + 16 + 2) / (READ_SHARE * work.gpu.bytes_per_s)


def update_s(work: Work, pack_tokens: int) -> float:
    """Return the time of all updates of a step."""
    gain = ADAPTER_GAIN if work.model.lora else 1.0
    flops = work.epochs * pass_tokens(work, pack_tokens, learns=True) * token_flops(work, learns=True)
    return flops / (gain * efficiency(work) * work.gpu.flops_per_s) + work.updates * optimizer_s(work)


def step_s(work: Work, at_once: int, speed: Speed) -> Mapping[str, float]:
    """Return the seconds by phase."""
    pack_tokens = usual_pack(work)
    phases = {"update": speed.update * update_s(work, pack_tokens), "rest": STEP_REST_S}
    if isinstance(work.stage, RlStage):
        sampling = {"sample": speed.decode * sample_s(work, at_once)}
        phases = sampling | {"logprobs": speed.update * score_s(work, pack_tokens)} | phases
    return phases
