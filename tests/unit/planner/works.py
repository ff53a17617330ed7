"""Stages to plan for: the recipes of benchmarks/, on shapes of known models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from groupwise.bench.engine_speed import SHAPES
from groupwise.config import load_recipe, make_recipe
from groupwise.config.recipe import RECIPES as SHIPPED
from groupwise.planner.gpus import GPUS, Gpu
from groupwise.planner.shapes import ModelShape, shape_of
from groupwise.planner.work import Work, work_of

RECIPES = Path(__file__).parents[3] / "benchmarks" / "recipes"
H200 = GPUS["h200"]
H200_WITH_24_GIB = Gpu("h200", 24.0, H200.bandwidth_gb_s, H200.tflops)
H200_WITH_25_GIB = Gpu("h200", 25.0, H200.bandwidth_gb_s, H200.tflops)
H200_WITH_50_GIB = Gpu("h200", 50.0, H200.bandwidth_gb_s, H200.tflops)
QWEN = shape_of(SHAPES["qwen2.5-1.5b"], "qwen2.5-1.5b")
QWEN_SMALL = replace(QWEN, layers=24, hidden=896, heads=14, kv_heads=2, head_size=64, width=4864)
"""Qwen2.5-0.5B."""
SMOLLM = shape_of(SHAPES["smollm2-135m"], "smollm2-135m")


def benchmark(
    name: str,
    shape: ModelShape,
    gpu: Gpu,
    *,
    prompt_tokens: int,
    mean_tokens: float,
    overrides: Sequence[str] = (),
) -> Work:
    recipe = load_recipe(RECIPES / f"{name}.toml", overrides)
    return work_of(recipe, recipe.stages[0], shape, gpu, prompt_tokens=prompt_tokens, mean_tokens=mean_tokens)


def shipped(
    name: str, shape: ModelShape, gpu: Gpu, overrides: Sequence[str], *, prompt_tokens: int, mean_tokens: float
) -> Work:
    """The first stage of a recipe that comes with groupwise."""
    recipe = load_recipe(SHIPPED / f"{name}.toml", overrides)
    return work_of(recipe, recipe.stages[0], shape, gpu, prompt_tokens=prompt_tokens, mean_tokens=mean_tokens)


def small_recipe(model: dict[str, Any] | None = None, engine: dict[str, Any] | None = None, **stage: Any) -> Any:
    keys = {"algorithm": "grpo", "steps": 10, "problems_per_step": 8, "rollouts_per_problem": 8} | stage
    return make_recipe(
        {
            "name": "small",
            "model": {"path": "tiny-qwen3"} | (model or {}),
            "task": {"name": "countdown"},
            "engine": engine or {},
            "stages": [keys],
        }
    )


def work(shape: ModelShape = QWEN, gpu: Gpu = H200, ranks: int = 1, prompt_tokens: int = 100, **keys: Any) -> Work:
    recipe = small_recipe(**keys)
    return work_of(recipe, recipe.stages[0], shape, gpu, prompt_tokens=prompt_tokens, ranks=ranks)
