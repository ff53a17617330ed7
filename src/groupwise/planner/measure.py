"""Plans compared with measurements: calibration by two short benchmarks, and the output of `groupwise bench step`.

A calibration is measured / planned time on a GPU, and is stored for later plans.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from groupwise.base.json_values import plain
from groupwise.base.outside import file_json, file_text, json_value
from groupwise.base.text_layout import aligned, percent
from groupwise.config import ConfigError, make_recipe
from groupwise.planner.gpus import Gpu, find_gpu, gpu_of_device, this_gpu
from groupwise.planner.make_plan import StagePlan
from groupwise.planner.shapes import ModelShape, shape_of
from groupwise.planner.stage_memory import usual_pack
from groupwise.planner.timing import Speed, sample_s, update_s
from groupwise.planner.work import Work, work_of

LARGE_MODEL, SMALL_MODEL = "qwen2.5-1.5b", "smollm2-135m"
LARGE_GIB = 38.0
"""Memory from which on the larger model is used: 18 bytes per weight, and some room."""
SEQUENCES, GROUP, PROMPT, NEW = 64, 8, 128, 256
"""Sizes of the engine benchmark."""
UPDATE_SEQUENCES, LONGEST, MICROBATCH = 32, 1024, 8192
"""Sizes of the update benchmark."""
MEMORY_TOLERANCE = 0.10
TIME_TOLERANCE = 0.25


@dataclass(frozen=True, slots=True)
class Probed:
    """Measurements of both benchmarks."""

    shape: ModelShape
    sample_s: float
    update_s: float
    sequence_tokens: float
    """Mean tokens of a completion in the update."""


def run_probes(gpu: Gpu) -> Probed:
    """Run `bench engine` and `bench update` on random weights; about a minute, with compilation."""
    from groupwise.bench.engine_speed import SHAPES, bench_engine
    from groupwise.bench.update_speed import UpdateWork, bench_update

    model = LARGE_MODEL if gpu.memory_gib >= LARGE_GIB else SMALL_MODEL
    (sampled,) = bench_engine(model, "native", [SEQUENCES], prompt_tokens=PROMPT, new_tokens=NEW, group_size=GROUP)
    update = UpdateWork(
        model=model,
        sequences=UPDATE_SEQUENCES,
        longest=LONGEST,
        prompt_tokens=PROMPT,
        microbatch_tokens=MICROBATCH,
        checkpointing=True,
    )
    updated = bench_update(update)
    return Probed(
        shape=shape_of(SHAPES[model], model),
        sample_s=sampled.seconds,
        update_s=updated.update_s,
        sequence_tokens=updated.tokens / UPDATE_SEQUENCES - PROMPT,
    )


def speed_of(probed: Probed, gpu: Gpu) -> Speed:
    """Return measured / planned time of both benchmarks."""
    sampling = _work(probed.shape, gpu, problems=SEQUENCES // GROUP, group=GROUP, mean_tokens=NEW, max_tokens=NEW)
    learning = _work(
        probed.shape,
        gpu,
        problems=UPDATE_SEQUENCES,
        group=1,
        mean_tokens=probed.sequence_tokens,
        max_tokens=LONGEST - PROMPT,
    )
    return Speed(
        decode=probed.sample_s / sample_s(sampling, SEQUENCES),
        update=probed.update_s / update_s(learning, usual_pack(learning)),
    )


def _work(shape: ModelShape, gpu: Gpu, *, problems: int, group: int, mean_tokens: float, max_tokens: int) -> Work:
    """Return the work of a benchmark, as that of a stage without a reference."""
    stage = {"algorithm": "dr_grpo", "steps": 1, "problems_per_step": 1, "rollouts_per_problem": 2}
    table = {
        "name": "probe",
        "model": {"path": "tiny-qwen3", "gradient_checkpointing": True},
        "task": {"name": "countdown"},
        "stages": [stage | {"microbatch_tokens": MICROBATCH}],
    }
    recipe = make_recipe(table)
    work = work_of(recipe, recipe.stages[0], shape, gpu, prompt_tokens=PROMPT)
    return replace(work, problems=problems, group=group, mean_tokens=mean_tokens, max_tokens=max_tokens)


# ---- stored calibrations ----


def calibration_path() -> Path:
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "groupwise" / "plan.json"


def known_speed(device: str) -> Speed | None:
    """Return the speed of the GPU with this driver name; None if it was never measured."""
    found = _calibrations().get(device)
    return None if found is None else Speed(float(found["decode"]), float(found["update"]))


def measure(gpu: Gpu, device: str, probe: Callable[[Gpu], Probed] = run_probes) -> Speed:
    """Run the benchmarks and store the result."""
    speed = speed_of(probe(gpu), gpu)
    path = calibration_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_calibrations() | {device: asdict(speed)}, indent=2) + "\n", encoding="utf-8")
    return speed


def choose_gpu(
    name: str, *, memory_gib: float | None = None, device: str | None = None, measures: bool = False
) -> tuple[Gpu, Speed | None]:
    """Return the GPU to plan for and, if it was measured, its speed.

    `name` is "this" for the GPU of this machine, or for the one with the driver name `device`. With `measures` the GPU
    of this machine is measured first. `memory_gib`: pretend the GPU has this much memory, all of it free.
    """
    if measures and name != "this":
        raise ConfigError(f"--measure: measures the GPU of this machine; drop --gpu {name}")
    if memory_gib is not None and memory_gib <= 0:
        raise ConfigError(f"--memory-gib {memory_gib:g}: must be above 0")
    speed = None
    if name != "this":
        gpu = find_gpu(name)
    elif device is not None:
        gpu, speed = gpu_of_device(device), known_speed(device)
    else:
        gpu, device = this_gpu()
        speed = measure(gpu, device) if measures else known_speed(device)
    return gpu if memory_gib is None else replace(gpu, memory_gib=memory_gib, taken_gib=0.0), speed


def _calibrations() -> dict[str, Any]:
    path = calibration_path()
    if not path.exists():
        return {}
    try:
        table: dict[str, Any] = file_json(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); delete it and run again with --measure") from None
    return table


# ---- against `groupwise bench step RECIPE --json` ----


@dataclass(frozen=True, slots=True)
class PlanCheck:
    name: str
    planned: float
    measured: float
    tolerance: float | None
    """None: shown, but not judged."""

    @property
    def difference(self) -> float:
        return self.planned / self.measured - 1

    @property
    def is_within(self) -> bool:
        return self.tolerance is None or abs(self.difference) <= self.tolerance

    def to_json(self) -> dict[str, Any]:
        return {**plain(self), "difference": self.difference, "is_within": self.is_within}


def comparison_table(rows: Sequence[PlanCheck]) -> str:
    cells = [("", "planned", "measured", "", "")]
    for row in rows:
        within = "within" if row.is_within else "NOT within"
        verdict = "" if row.tolerance is None else f"{within} {percent(row.tolerance, 0)}"
        cells.append((row.name, f"{row.planned:.3f}", f"{row.measured:.3f}", f"{100 * row.difference:+.0f} %", verdict))
    return "\n".join(aligned(cells, has_notes=True))


def read_measured(path: Path) -> dict[str, Any]:
    """Read the last line of a file that `bench step --json` wrote."""
    fix = "create it with `groupwise bench step RECIPE --json`"
    try:
        lines = file_text(path).strip().splitlines()
        measured: dict[str, Any] = json_value(lines[-1] if lines else "")
    except (OSError, ValueError) as error:
        raise ConfigError(f"--against {path}: cannot be read: {error}; {fix}") from None
    for key in ("stage", "device", "step_s", "phases_s", "mean_tokens", "peak_bytes"):
        if key not in measured:
            raise ConfigError(f"--against {path}: has no {key}; {fix}")
    return measured


def compare(stage: StagePlan, measured: dict[str, Any]) -> list[PlanCheck]:
    rows = [PlanCheck("step, s", stage.step_s, measured["step_s"], TIME_TOLERANCE)]
    rows += [
        PlanCheck(f"  {phase}", stage.phases_s[phase], seconds, None)
        for phase, seconds in measured["phases_s"].items()
        if stage.phases_s.get(phase) and seconds > 0
    ]
    if measured["peak_bytes"]:
        rows.append(PlanCheck("peak, GiB", stage.usual.peak / 2**30, measured["peak_bytes"] / 2**30, MEMORY_TOLERANCE))
    return rows
