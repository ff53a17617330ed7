"""Sampling speed of an engine: tokens per second, milliseconds per decode step, share of the bandwidth floor.

The work is that of a training step: prompts of one length, groups of rollouts on each, temperature 1, the logprob of
each token. The floor is the time that a decode step cannot beat: weights and cache read once, at the memory bandwidth,
which is measured here with a copy. `mixed` gives rollouts different lengths, as stop tokens do.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen2Config

from groupwise.base.text_layout import aligned, percent
from groupwise.config import ConfigError, ModelConfig
from groupwise.engines.engine import Engine, Request
from groupwise.engines.native.native_engine import NativeEngine
from groupwise.engines.reference import ReferenceEngine
from groupwise.models import cpu
from groupwise.models.families import head_size, num_kv_heads
from groupwise.models.fused import fuse
from groupwise.models.load import load_model
from groupwise.types import Problem, Prompt, SamplingParams

T = TypeVar("T")
SHAPES: dict[str, PreTrainedConfig] = {
    "qwen2.5-1.5b": Qwen2Config(
        hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2,
        vocab_size=151936, tie_word_embeddings=True, max_position_embeddings=32768,
    ),
    "smollm2-135m": LlamaConfig(
        hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
        vocab_size=49152, tie_word_embeddings=True, max_position_embeddings=8192, head_dim=64,
    ),
}  # fmt: skip
"""Shapes of known models. The weights are random: speed does not depend on them."""
ENGINES = {"native": NativeEngine, "reference": ReferenceEngine}
MIXED_MEAN_SHARE = 0.66
"""Mean length of mixed rollouts, as a share of the longest: 170 of 256."""
COLUMNS = ("engine    ", "sequences", "    tokens/s", "ms/step", "of floor", "mean length", "first call s")
TABLE_HEADING = aligned([COLUMNS])[0]


@dataclass(frozen=True, slots=True)
class EngineTiming:
    model: str
    engine: str
    sequences: int
    prompt_tokens: int
    new_tokens: int
    """The limit; with mixed lengths most rollouts end before it."""
    mean_tokens: float
    first_s: float
    """Seconds of the first call, including set-up: compilation, graph capture, allocation."""
    seconds: float
    """Seconds of the second call."""
    tokens_per_s: float
    ms_per_step: float
    """Milliseconds per new token: seconds / `new_tokens`, including prefill and scheduling."""
    floor_share: float | None
    """The bandwidth floor / the time of a step. None on a CPU, with mixed lengths, or when some rollouts wait."""

    def __str__(self) -> str:
        """Return a row to stand under TABLE_HEADING."""
        share = "" if self.floor_share is None else percent(self.floor_share, 0)
        speed = f"{self.tokens_per_s:,.0f}", f"{self.ms_per_step:.2f}", share
        return aligned(
            [COLUMNS, (self.engine, str(self.sequences), *speed, f"{self.mean_tokens:.1f}", f"{self.first_s:.1f}")]
        )[1]


class _NoText:
    """A tokenizer that decodes nothing: the speed of tokens is measured, not that of text."""

    def decode(self, *arguments: Any, **named: Any) -> str:
        return ""


def bench_engine(
    name: str,
    engine_name: str,
    sequences: Sequence[int],
    *,
    prompt_tokens: int = 128,
    new_tokens: int = 256,
    group_size: int = 8,
    mixed: bool = False,
    at_once: int = 0,
) -> list[EngineTiming]:
    check_engine_name(engine_name)
    model = load_shape(name)
    stops = _stops_for(model, new_tokens) if mixed else ()
    timings = []
    for count in sequences:
        requests = make_requests(count, group_size, prompt_tokens, model.config.get_text_config().vocab_size)
        sampling = SamplingParams(max_new_tokens=new_tokens)
        engine = make_engine(engine_name, model, stops, min(count, at_once or count))
        first_s, _ = _time(engine, requests, sampling)
        seconds, num_tokens = _time(engine, requests, sampling)
        is_floor_known = model.device.type == "cuda" and not mixed and not at_once
        step = seconds / new_tokens
        floor_share = floor_seconds(model, count, prompt_tokens, new_tokens) / step if is_floor_known else None
        work = name, engine_name, count, prompt_tokens, new_tokens
        timings.append(
            EngineTiming(
                *work, num_tokens / count, first_s, seconds, num_tokens / seconds, 1000 * step, floor_share=floor_share
            )
        )
        del engine
    return timings


def load_shape(name: str) -> Any:
    """Load a model for sampling only: a shape by name, with random weights, or real weights by path."""
    model = make_shape(name) if name in SHAPES else load_model(model_at(name), seed=0).model
    fuse(model)
    return model.eval().requires_grad_(False)


def make_shape(name: str) -> Any:
    """Return a model with this shape and random weights, on the device and in the dtype that loading would choose."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if device == "cuda" else torch.float32)
    try:
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(SHAPES[name], attn_implementation="sdpa")
    finally:
        torch.set_default_dtype(dtype)
    if device == "cuda":
        return model
    cpu.prepare()
    return model.to(cpu.choose_dtype(model))


def model_at(path: str) -> ModelConfig:
    """Return the configuration for a model given by path. A name that cannot be a path is a misspelt shape."""
    if path.startswith("tiny-") or "/" in path or path.endswith(".gguf"):
        return ModelConfig(path=path)
    raise ConfigError(f"--model {path!r}: expected one of {', '.join(SHAPES)}, or the path of a model")


def make_requests(count: int, group_size: int, prompt_tokens: int, vocab: int) -> list[Request]:
    dice = random.Random(0)
    return [
        Request(
            Prompt(Problem(str(index), (), ""), tuple(dice.randrange(vocab) for _ in range(prompt_tokens))),
            tuple(dice.getrandbits(63) for _ in range(min(group_size, count - first))),
        )
        for index, first in enumerate(range(0, count, group_size))
    ]


def make_engine(name: str, model: Any, stops: Sequence[int], rows: int) -> Engine:
    check_engine_name(name)
    return ENGINES[name](model, _NoText(), stops, rows)


def check_engine_name(name: str) -> None:
    if name not in ENGINES:
        raise ConfigError(f"--engines {name!r}: expected one of {', '.join(ENGINES)}")


def _time(engine: Engine, requests: Sequence[Request], sampling: SamplingParams) -> tuple[float, int]:
    seconds, groups = timed(lambda: [group for _, group in engine.generate(requests, sampling, 0)])
    return seconds, sum(len(rollout.token_ids) for group in groups for rollout in group.rollouts)


def floor_seconds(model: Any, count: int, prompt_tokens: int, new_tokens: int) -> float:
    """Return the floor of a decode step halfway through the completions: weights and cache read once."""
    config = model.config.get_text_config()
    heads, size = num_kv_heads(config), head_size(config)
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    token_bytes = config.num_hidden_layers * 2 * heads * size * model.dtype.itemsize
    cache = count * (prompt_tokens + new_tokens / 2) * token_bytes
    return float((weights + cache) / copy_bandwidth(model.device))


def copy_bandwidth(device: torch.device) -> float:
    """Measure a copy on the device: bytes read plus bytes written per second."""
    size_bytes = 2 << 30
    source = torch.empty(size_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = 0.0
    for _ in range(5):
        seconds, _ = timed(lambda: [target.copy_(source) for _ in range(10)])
        best = max(best, 20 * size_bytes / seconds)
    return best


def _stops_for(model: Any, new_tokens: int) -> tuple[int, ...]:
    """Choose as many stop tokens as give rollouts of a model with random weights the mean length of mixed rollouts."""
    low, high = 0.0, 1.0
    for _ in range(60):
        chance = (low + high) / 2
        mean = sum((1 - chance) ** step for step in range(new_tokens))
        low, high = (chance, high) if mean > MIXED_MEAN_SHARE * new_tokens else (low, chance)
    vocab = model.config.get_text_config().vocab_size
    return tuple(random.Random(1).sample(range(vocab), max(1, round(low * vocab))))


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Return the seconds that `work` takes, and its result.

    It waits for the device: kernels are still running when the call that started them returns.
    """
    is_gpu = torch.cuda.is_available()
    if is_gpu:
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = work()
    if is_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - start, result
