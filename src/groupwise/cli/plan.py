"""Predict a recipe's memory use and run time on a GPU.

The exit status is 0 if every stage fits (or the plan agrees with `--against`), else 1.

Examples:
  groupwise plan gsm8k --gpu 4090
  groupwise plan gsm8k --gpu h200 --ranks 4 --prompt-tokens task
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from groupwise.cli.arguments import GIB, RECIPE, Options, argument, json_option, parse_numbers, set_option, takes
from groupwise.cli.printing import print_json, say
from groupwise.config import ConfigError, Recipe, find_recipe, load_recipe
from groupwise.config.build import require

if TYPE_CHECKING:
    from groupwise.planner.make_plan import Plan


@takes(
    argument("recipe", RECIPE),
    set_option(),
    argument("--gpu", "as in a100-40, 4090, h100, h200; this: the GPU of this machine", default="this"),
    argument("--memory-gib", "pretend the GPU has this much memory", type=float, within=GIB),
    argument("--ranks", "number of GPUs", default=1, within="[1, 1e5]"),
    argument("--prompt-tokens", "mean prompt tokens; task: measure the recipe's task (default: 128)", metavar="N"),
    argument(
        "--mean-tokens", "mean tokens per completion (default: half max_new_tokens)", type=float, within="[1, 1e7]"
    ),
    argument("--measure", "measure this GPU first, for about a minute; later plans reuse it", default=False),
    argument("--against", "compare with what `groupwise bench step RECIPE --json` printed", type=Path, metavar="FILE"),
    json_option(),
)
def run(options: Options) -> int:
    from groupwise.planner.make_plan import make_plan
    from groupwise.planner.measure import choose_gpu, read_measured
    from groupwise.planner.shapes import find_shape
    from groupwise.planner.show_plan import print_plan

    recipe = load_recipe(find_recipe(options.recipe), options.settings)
    measured = {} if options.against is None else read_measured(options.against)
    gpu, speed = choose_gpu(
        options.gpu, memory_gib=options.memory_gib, device=measured.get("device"), measures=options.measure
    )
    plan = make_plan(
        recipe,
        find_shape(recipe.model),
        gpu,
        prompt_tokens=_prompt_tokens(options.prompt_tokens, recipe),
        mean_tokens=options.mean_tokens or measured.get("mean_tokens"),
        ranks=options.ranks,
        speed=speed,
    )
    if measured:
        return _print_comparison(plan, measured, options)
    if options.json:
        print_json(plan.to_json())
    else:
        print_plan(plan)
    return 0 if plan.fits else 1


def _prompt_tokens(given: str | None, recipe: Recipe) -> int | None:
    from groupwise.planner.work import mean_prompt_tokens

    if given is None:
        return None
    if given == "task":
        return mean_prompt_tokens(recipe)
    numbers = parse_numbers(given, "--prompt-tokens", "128", int, "[1, 1e7]")
    require(len(numbers) == 1, f"--prompt-tokens {given}: expected one number, or task")
    return numbers[0]


def _print_comparison(plan: Plan, measured: dict[str, object], options: Options) -> int:
    from groupwise.planner.measure import compare, comparison_table

    stage = next((stage for stage in plan.stages if stage.name == measured["stage"]), None)
    if stage is None:
        names = ", ".join(stage.name for stage in plan.stages)
        raise ConfigError(f"--against {options.against}: measured stage {measured['stage']!r}; the recipe has {names}")
    rows = compare(stage, measured)
    if options.json:
        print_json({"recipe": plan.recipe, "stage": stage.name, "rows": [row.to_json() for row in rows]})
    else:
        say(f"{plan.recipe}, stage {stage.name}, {plan.gpu.name}")
        print(comparison_table(rows))
    return 0 if all(row.is_within for row in rows) else 1
