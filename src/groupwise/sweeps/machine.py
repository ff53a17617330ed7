"""Decides how many runs go at once, and on which GPU, from the planner's estimates.

Contract: `look` needs torch and makes a CUDA context, so `look_apart` calls it in a separate process, which releases
both when it ends. The rest is arithmetic. If no plan can be made (the model is not available, the GPU is unknown), the
reason is returned as text and is not an error: a sweep can run without a plan.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from groupwise.config import ConfigError, Recipe
from groupwise.sweeps.folder import SweepJob
from groupwise.sweeps.run_jobs import Placement
from groupwise.sweeps.sweep_records import Sweep
from groupwise.workers import num_cores, usual_workers

MEMORY_MARGIN = 0.9
"""Fraction of GPU memory to fill: plans are not exact, and runs that do not fit crash each other."""
VLLM_SHARE = 0.4
"""The meaning of engine.memory_share = 0; DEFAULT_MEMORY_SHARE of the vLLM engine, which imports torch."""


@dataclass(frozen=True, slots=True)
class ArmPlan:
    run_s: float
    peak_bytes: float
    """Peak including the CUDA context."""
    fits: bool


@dataclass(frozen=True, slots=True)
class Machine:
    num_gpus: int
    gpu_bytes: int
    """Free memory of one GPU; 0 if there is none, or an unknown one."""
    plans: tuple[ArmPlan | str, ...] = ()
    """One plan per recipe, or the reason why there is none."""


def plan_recipes(recipes: Sequence[Recipe], gpu_name: str = "this") -> tuple[int, tuple[ArmPlan | str, ...]]:
    """Return the free bytes of the GPU, and a plan for each recipe or the reason why there is none."""
    from groupwise.planner.make_plan import make_plan
    from groupwise.planner.measure import choose_gpu
    from groupwise.planner.shapes import ModelShape, find_shape
    from groupwise.planner.stage_memory import CONTEXT_BYTES

    try:
        gpu, speed = choose_gpu(gpu_name)
    except ConfigError as error:
        if gpu_name != "this":
            raise
        return 0, tuple(str(error) for _ in recipes)
    # Once per model: a hub that does not answer costs a timeout.
    shapes: dict[str, ModelShape | str] = {}
    plans: list[ArmPlan | str] = []
    for recipe in recipes:
        model = f"{recipe.model.path} {sorted(recipe.model.tiny.items())}"
        try:
            shape = shapes.get(model) or find_shape(recipe.model)
        except ConfigError as error:
            shape = str(error)
        shapes[model] = shape
        if isinstance(shape, str):
            plans.append(shape)
            continue
        plan = make_plan(recipe, shape, gpu, speed=speed)
        peak = max(stage.most.peak for stage in plan.stages) + CONTEXT_BYTES
        plans.append(ArmPlan(plan.run_s, peak, plan.fits))
    return gpu.free_bytes, tuple(plans)


def look(recipes: Sequence[Recipe]) -> Machine:
    import torch

    count = torch.cuda.device_count()
    if count == 0:
        return Machine(0, 0)
    gpu_bytes, plans = plan_recipes(recipes) if recipes else (0, ())
    return Machine(count, gpu_bytes, plans)


def look_apart(recipes: Sequence[Recipe]) -> Machine:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(look, tuple(recipes)).result()


def place(sweep: Sweep, recipes: Sequence[Recipe], jobs: int | str) -> tuple[Placement, str]:
    """Return how runs share this machine, and the reason as a sentence ("" if there is none)."""
    if jobs == 1:
        return Placement(), ""
    if all(recipe.model.device == "cpu" for recipe in recipes):
        machine = Machine(0, 0)
    else:
        machine = look_apart(recipes if jobs == "auto" else ())
    cores = num_cores()
    at_once, reason = (jobs, "") if isinstance(jobs, int) else auto_jobs(machine, cores)
    devices = visible_devices(machine.num_gpus) if machine.num_gpus > 1 else ()
    per_gpu = math.ceil(at_once / max(1, machine.num_gpus))

    def overrides(job: SweepJob) -> tuple[str, ...]:
        return (*shared_memory(sweep, job, per_gpu), *shared_cores(sweep, job, at_once, cores))

    return Placement(at_once, devices, overrides), reason


def auto_jobs(machine: Machine, num_cores: int) -> tuple[int, str]:
    """Return the number of runs at once, and why."""
    if machine.num_gpus == 0:
        count = max(1, num_cores // 2)
        return count, f"runs at once: {count}, half of the {num_cores} cores; there is no GPU"
    planned = [plan for plan in machine.plans if isinstance(plan, ArmPlan)]
    unknown = [plan for plan in machine.plans if isinstance(plan, str)]
    if unknown or not planned:
        reason = unknown[0] if unknown else "there are no recipes to plan"
        return machine.num_gpus, f"runs at once: {machine.num_gpus}, one per GPU, because there is no plan: {reason}"
    peak = max(plan.peak_bytes for plan in planned)
    fitting = max(1, int(MEMORY_MARGIN * machine.gpu_bytes // peak)) * machine.num_gpus
    count = max(1, min(fitting, num_cores))
    limit = "as many as fit" if count == fitting else f"as many as cores ({fitting} would fit in memory)"
    return count, f"runs at once: {count}, {limit}; the largest needs {peak / 2**30:.1f} GiB"


def shared_memory(sweep: Sweep, job: SweepJob, per_gpu: int) -> tuple[str, ...]:
    """Divide the share of the GPU that vLLM takes among its runs. The native engine takes only what it needs."""
    engine = sweep.recipe(job.arm).engine
    if engine.name != "vllm" or engine.url or per_gpu == 1:
        return ()
    share = (engine.memory_share or VLLM_SHARE) / per_gpu
    return (f"engine.memory_share={share!r}",)


def shared_cores(sweep: Sweep, job: SweepJob, at_once: int, cores: int) -> tuple[str, ...]:
    """Divide the cores among the verifiers of all runs; a run does not know about the others."""
    if sweep.recipe(job.arm).verifier.workers != "auto":
        return ()
    return (f"verifier.workers={usual_workers(cores, at_once)}",)


def visible_devices(count: int) -> tuple[str, ...]:
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return tuple(named.split(",")[:count]) if named else tuple(str(index) for index in range(count))
