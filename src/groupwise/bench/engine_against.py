"""The same sampling in groupwise and in vLLM or transformers: tokens per second of both.

Weights, prompts, numbers of completions, their length and the temperature are the same. groupwise also returns the
logprob of each token; the others are asked for tokens alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import groupwise
from groupwise.base.json_values import plain
from groupwise.base.text_layout import aligned
from groupwise.bench.engine_speed import (
    SHAPES,
    EngineTiming,
    bench_engine,
    check_engine_name,
    make_requests,
    make_shape,
    model_at,
)
from groupwise.bench.side_by_side import Other, OtherFailed, Tell, apart, candidates, told
from groupwise.models.families import head_size, num_kv_heads
from groupwise.models.load import load_model

GROUP_SIZE = 8


@dataclass(frozen=True, slots=True)
class EngineComparison:
    library: str
    version: str
    ours: list[EngineTiming]
    """One per number of sequences."""
    theirs: list[tuple[dict[str, Any], list[float]]]
    """Settings, with tokens per second for each number of sequences."""

    def ratios(self, speeds: Sequence[float]) -> list[float]:
        """Tokens per second of groupwise / those of the other library."""
        return [ours.tokens_per_s / speed for ours, speed in zip(self.ours, speeds, strict=True)]

    def to_json(self) -> dict[str, Any]:
        theirs = [
            {"version": self.version, "settings": settings, "tokens_per_s": speeds, "ratios": self.ratios(speeds)}
            for settings, speeds in self.theirs
        ]
        return {"groupwise": plain(self.ours), self.library: theirs}

    def __str__(self) -> str:
        first = self.ours[0]
        rows = [("", "sequences", "tokens/s", f"groupwise / {self.library}")]
        for index, timing in enumerate(self.ours):
            rows.append((first.engine, str(timing.sequences), f"{timing.tokens_per_s:,.0f}", ""))
            for settings, speeds in self.theirs:
                ratio = f"{self.ratios(speeds)[index]:.2f}"
                rows.append((told(settings), str(timing.sequences), f"{speeds[index]:,.0f}", ratio))
        sides = f"groupwise {groupwise.__version__}, {self.library} {self.version}: {first.model}"
        work = f"prompts of {first.prompt_tokens} tokens, completions of {first.new_tokens}"
        return "\n".join([sides, work, *aligned(rows)])


def compare_engines(
    model: str, engine: str, sequences: Sequence[int], other: Other, lengths: Mapping[str, int], tell: Tell
) -> EngineComparison:
    """Compare sampling. `lengths`: prompt_tokens and new_tokens."""
    check_engine_name(engine)
    other.check()
    with tempfile.TemporaryDirectory(prefix="groupwise-against-") as name:
        folder = Path(name) / "model"
        work, dtype = apart(make_sampling_work, model, folder, sequences, lengths, is_vllm=other.library == "vllm")
        tell(f"measuring groupwise, engine {engine}")
        ours = apart(_bench, engine, model, sequences, lengths)
        tried = candidates(other.settings, [{"dtype": dtype}, {"dtype": "bfloat16"}])
        works = [work | {"arguments": work["arguments"] | settings, "settings": settings} for settings in tried]
        results = other.measure_each(works, tell)
    theirs = []
    for done, result in results:
        for count, timing in zip(sequences, result["timings"], strict=True):
            if timing["tokens"] != count * lengths["new_tokens"]:
                raise OtherFailed(
                    f"{other.library} sampled {timing['tokens']:,} tokens instead of {count} × {lengths['new_tokens']} "
                    f"with {told(done['settings'])}, so the two sides cannot be compared; change --against-set"
                )
        theirs.append((done["settings"], [timing["tokens"] / timing["seconds"] for timing in result["timings"]]))
    return EngineComparison(other.library, results[0][1]["version"], ours, theirs)


def make_sampling_work(
    name: str, folder: Path, sequences: Sequence[int], lengths: Mapping[str, int], *, is_vllm: bool
) -> tuple[dict[str, Any], str]:
    """Write the model as a Hugging Face folder; return the work for another library, and the model's dtype.

    A batch for each number of sequences: prompts, with the number of completions of each.
    """
    model = make_shape(name) if name in SHAPES else load_model(model_at(name), seed=0).model
    model.save_pretrained(folder)
    config = model.config.get_text_config()
    arguments = {}
    if is_vllm and model.device.type == "cpu":
        # By default its cache takes most of the memory. Twice what all sequences need in float32, so that none waits.
        token_bytes = config.num_hidden_layers * 2 * num_kv_heads(config) * head_size(config) * 4
        arguments["kv_cache_memory_bytes"] = 2 * max(sequences) * (sum(lengths.values()) + 64) * token_bytes
    batches = [
        [
            {"token_ids": list(request.prompt.token_ids), "count": len(request.seeds)}
            for request in make_requests(count, GROUP_SIZE, lengths["prompt_tokens"], config.vocab_size)
        ]
        for count in sequences
    ]
    work = {"model": str(folder), "device": model.device.type, "batches": batches, "arguments": arguments}
    return work | {"new_tokens": lengths["new_tokens"]}, str(model.dtype).removeprefix("torch.")


def _bench(engine: str, model: str, sequences: Sequence[int], lengths: Mapping[str, int]) -> list[EngineTiming]:
    return bench_engine(model, engine, sequences, group_size=GROUP_SIZE, **lengths)  # type: ignore[arg-type]
