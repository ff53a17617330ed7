"""How many runs go at once, and on which GPU: asked of the planner, before anything runs.

Contract: `look` needs torch and makes a CUDA context, so it is called in a process of its own (`look_apart`), which
gives both back when it ends. The rest is arithmetic. A plan that cannot be made (a model that is not here, a GPU that
is not known) is a reason in words, never an error: a sweep runs without a plan.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

from groupwise.config import ConfigError, Recipe
from groupwise.sweeps.arms import Sweep
from groupwise.sweeps.folder import SweepJob
from groupwise.sweeps.run_jobs import Placement
from groupwise.workers import num_cores, usual_workers

MEMORY_MARGIN = 0.9
"""Of the GPU's memory: a plan may be a little off, and runs that do not fit end each other."""
VLLM_SHARE = 0.4
"""What engine.memory_share = 0 stands for."""


@dataclass(frozen=True, slots=True)
class ArmPlan:
    run_s: float
    peak_bytes: float
    """With CUDA's own context."""
    fits: bool


@dataclass(frozen=True, slots=True)
class Machine:
    num_gpus: int
    gpu_bytes: int
    """Free on one of them; 0 where there is none, or none that is known."""
    plans: tuple[ArmPlan | str, ...] = ()
    """One for each recipe; a text says why there is none."""


def plan_recipes(recipes: Sequence[Recipe], gpu_name: str = "this") -> tuple[int, tuple[ArmPlan | str, ...]]:
    """(bytes of the GPU that are free, a plan for each recipe)."""
    from groupwise.planner.gpus import find_gpu, this_gpu
    from groupwise.planner.make_plan import make_plan
    from groupwise.planner.measure import calibration_path, known_speed
    from groupwise.planner.prompts import USUAL_TOKENS
    from groupwise.planner.shapes import ModelShape, find_shape
    from groupwise.planner.stage_memory import CONTEXT_BYTES

    try:
        gpu, device = this_gpu() if gpu_name == "this" else (find_gpu(gpu_name), None)
        speed = None if device is None else known_speed(device, calibration_path())
    except ConfigError as error:
        if gpu_name != "this":
            raise
        return 0, tuple(str(error) for _ in recipes)
    # Once for each model: a hub that does not answer is waited for.
    shapes: dict[str, ModelShape | str] = {}
    for recipe in recipes:
        if _model_key(recipe) not in shapes:
            try:
                shapes[_model_key(recipe)] = find_shape(recipe.model)
            except ConfigError as error:
                shapes[_model_key(recipe)] = str(error)
    plans: list[ArmPlan | str] = []
    for recipe in recipes:
        shape = shapes[_model_key(recipe)]
        if isinstance(shape, str):
            plans.append(shape)
            continue
        plan = make_plan(recipe, shape, gpu, prompt_tokens=USUAL_TOKENS, speed=speed)
        peak = max(stage.most.peak for stage in plan.stages) + CONTEXT_BYTES
        plans.append(ArmPlan(plan.run_s, peak, plan.fits))
    return gpu.free_bytes, tuple(plans)


def _model_key(recipe: Recipe) -> str:
    return f"{recipe.model.path} {sorted(recipe.model.tiny.items())}"


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
    """How runs share this machine, and a sentence on it ("" where there is nothing to say)."""
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
    """(runs at once, why)."""
    if machine.num_gpus == 0:
        count = max(1, num_cores // 2)
        return count, f"{count} at once: half of the {num_cores} cores, and no GPU"
    planned = [plan for plan in machine.plans if isinstance(plan, ArmPlan)]
    unknown = [plan for plan in machine.plans if isinstance(plan, str)]
    if unknown or not planned:
        reason = unknown[0] if unknown else "nothing to plan"
        return machine.num_gpus, f"{machine.num_gpus} at once, one on each GPU, since there is no plan: {reason}"
    peak = max(plan.peak_bytes for plan in planned)
    fitting = max(1, int(MEMORY_MARGIN * machine.gpu_bytes // peak)) * machine.num_gpus
    count = max(1, min(fitting, num_cores))
    limit = "fit by plan" if count == fitting else f"as many as there are cores ({fitting} would fit by plan)"
    return count, f"{count} at once: {limit}; the largest takes {peak / 2**30:.1f} GiB"


def shared_memory(sweep: Sweep, job: SweepJob, per_gpu: int) -> tuple[str, ...]:
    """The native engine takes what it needs; vLLM takes a share of the GPU, which is divided."""
    engine = sweep.recipe(job.arm).engine
    if engine.name != "vllm" or engine.url or per_gpu == 1:
        return ()
    share = (engine.memory_share or VLLM_SHARE) / per_gpu
    return (f"engine.memory_share={share!r}",)


def shared_cores(sweep: Sweep, job: SweepJob, at_once: int, cores: int) -> tuple[str, ...]:
    """A run that takes half of the cores for its verifier does not know of the others."""
    if sweep.recipe(job.arm).verifier.workers != "auto":
        return ()
    return (f"verifier.workers={usual_workers(cores, at_once)}",)


def visible_devices(count: int) -> tuple[str, ...]:
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return tuple(named.split(",")[:count]) if named else tuple(str(index) for index in range(count))
