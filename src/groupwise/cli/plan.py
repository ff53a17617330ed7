"""The planner: what a recipe will take, before it runs."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from groupwise.cli.libraries import quiet_libraries
from groupwise.planner.prompts import USUAL_TOKENS

if TYPE_CHECKING:
    from groupwise.config import Recipe
    from groupwise.planner.gpus import Gpu
    from groupwise.planner.make_plan import Plan
    from groupwise.planner.timing import Speed


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    plan = commands.add_parser("plan", help="memory and time of a recipe on a GPU, before the run")
    plan.add_argument("recipe", help="a TOML file, or the name of one of `groupwise recipes`")
    plan.add_argument("--set", action="append", default=[], metavar="a.b=c", dest="overrides", help="override a key")
    plan.add_argument(
        "--gpu", default="this", help="as in a100-40, 4090, h100, h200; default this, the one that is here"
    )
    plan.add_argument("--memory-gib", type=float, help="as if the GPU had so much memory")
    plan.add_argument("--ranks", type=int, default=1, help="so many of these GPUs; default 1")
    plan.add_argument(
        "--prompt-tokens", metavar="N", default=str(USUAL_TOKENS),
        help=f"of a prompt; default {USUAL_TOKENS}. `task`: as the recipe's task and tokenizer have them",
    )  # fmt: skip
    plan.add_argument("--mean-tokens", type=float, help="of a completion; default half of max_new_tokens")
    plan.add_argument("--measure", action="store_true", help="first measure this GPU, a minute; later plans use it too")
    plan.add_argument(
        "--against", type=Path, metavar="FILE", help="compare with what `groupwise bench step RECIPE --json` wrote"
    )
    plan.add_argument("--json", action="store_true")
    plan.set_defaults(command=_plan)


def _plan(options: argparse.Namespace) -> int:
    """0 where all stages fit (or the plan is as measured), 1 where one does not."""
    import json

    from groupwise.config import find_recipe, load_recipe
    from groupwise.planner.against import read_measured

    recipe = load_recipe(find_recipe(options.recipe), options.overrides)
    measured = None if options.against is None else read_measured(options.against)
    gpu, speed = _gpu_and_speed(options, None if measured is None else str(measured["device"]))
    from groupwise.planner.make_plan import make_plan
    from groupwise.planner.shapes import find_shape
    from groupwise.planner.show_plan import print_plan

    quiet_libraries()
    mean_tokens = options.mean_tokens if measured is None else options.mean_tokens or measured["mean_tokens"]
    plan = make_plan(
        recipe,
        find_shape(recipe.model),
        gpu,
        prompt_tokens=_prompt_tokens(options.prompt_tokens, recipe),
        mean_tokens=mean_tokens,
        ranks=options.ranks,
        speed=speed,
    )
    if measured is not None:
        return _print_comparison(plan, measured, options)
    if options.json:
        print(json.dumps(plan.to_json()))
    else:
        print_plan(plan)
    return 0 if plan.fits else 1


def _prompt_tokens(given: str, recipe: Recipe) -> int:
    from groupwise.config import ConfigError
    from groupwise.planner.prompts import mean_prompt_tokens

    if given == "task":
        return mean_prompt_tokens(recipe)
    if not given.isdecimal():
        raise ConfigError(f"--prompt-tokens {given!r}: expected a number, or task")
    return int(given)


def _gpu_and_speed(options: argparse.Namespace, device: str | None) -> tuple[Gpu, Speed | None]:
    """The GPU that is planned for, and how fast it was found to be, if it is the one that is here."""
    from groupwise.config import ConfigError
    from groupwise.planner.gpus import find_gpu, gpu_of_device, this_gpu
    from groupwise.planner.measure import calibration_path, known_speed, measure

    if options.measure and options.gpu != "this":
        raise ConfigError(f"--measure: measures the GPU that is here; drop --gpu {options.gpu}")
    speed = None
    if options.gpu != "this":
        gpu = find_gpu(options.gpu)
    elif device is not None:
        gpu = gpu_of_device(device)  # the one that was measured, wherever that was
        speed = known_speed(device, calibration_path())
    else:
        gpu, device = this_gpu()
        path = calibration_path()
        speed = measure(gpu, device, path) if options.measure else known_speed(device, path)
    if options.memory_gib is not None:
        if options.memory_gib <= 0:
            raise ConfigError(f"--memory-gib {options.memory_gib:g}: must be above 0")
        gpu = replace(gpu, memory_gib=options.memory_gib, taken_gib=0.0)
    return gpu, speed


def _print_comparison(plan: Plan, measured: dict[str, object], options: argparse.Namespace) -> int:
    import json

    from groupwise.config import ConfigError
    from groupwise.planner.against import compare, comparison_table

    stage = next((stage for stage in plan.stages if stage.name == measured["stage"]), None)
    if stage is None:
        names = ", ".join(stage.name for stage in plan.stages)
        raise ConfigError(f"--against {options.against}: is of stage {measured['stage']!r}, and the recipe has {names}")
    rows = compare(stage, measured)
    if options.json:
        print(json.dumps({"recipe": plan.recipe, "stage": stage.name, "rows": [row.to_json() for row in rows]}))
    else:
        print(f"{plan.recipe}, stage {stage.name}, {plan.gpu.name}")
        print(comparison_table(rows))
    return 0 if all(row.is_within for row in rows) else 1
