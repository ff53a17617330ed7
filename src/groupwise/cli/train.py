"""Commands about runs: start and resume them, what they can be made of, what comes out of them."""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groupwise.api.watchers import watchers
from groupwise.cli.libraries import quiet_libraries

if TYPE_CHECKING:
    from groupwise.training.request import RunRequest


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    train = commands.add_parser("train", help="run a recipe, or resume a run")
    train.add_argument("recipe", nargs="?", help="a TOML file, or the name of one of `groupwise recipes`")
    train.add_argument("--resume", metavar="RUN", type=Path, help="go on with this run directory")
    train.add_argument("--run-dir", type=Path, help="where the run goes; by default runs/NAME-FINGERPRINT")
    train.add_argument("--set", action="append", default=[], metavar="a.b=c", dest="overrides", help="override a key")
    train.add_argument(
        "--accept-verifier", action="store_true", help="resume although the verifier's version has changed"
    )
    train.add_argument(
        "--memory-gib", type=float, metavar="N", help="take no more of a GPU's memory: for runs that share one"
    )
    train.add_argument("--ray", action="store_true", help="on a Ray cluster, with verifier workers on all its machines")
    train.add_argument("--ray-ranks", type=int, metavar="N", help="ranks; by default one for each GPU of the cluster")
    train.add_argument(
        "--ray-address", metavar="HOST:PORT", help="by default RAY_ADDRESS, or a cluster of this machine"
    )
    train.set_defaults(command=_train)

    demo = commands.add_parser("demo", help="watch a tiny model learn on the CPU, in minutes, with no download")
    demo.add_argument("--seed", type=int, default=0)
    demo.add_argument("--run-dir", type=Path, help="by default a new folder under runs/")
    demo.set_defaults(command=_demo)

    recipes = commands.add_parser("recipes", help="list the recipes, or print one")
    recipes.add_argument("name", nargs="?")
    recipes.add_argument("--json", action="store_true")
    recipes.set_defaults(command=_recipes)

    tasks = commands.add_parser("tasks", help="list the tasks, or the options of one")
    tasks.add_argument("name", nargs="?")
    tasks.add_argument("--json", action="store_true")
    tasks.set_defaults(command=_tasks)

    algorithms = commands.add_parser("algorithms", help="list the algorithms and what each chooses")
    algorithms.add_argument("--json", action="store_true")
    algorithms.set_defaults(command=_algorithms)

    export = commands.add_parser("export", help="write a run's weights, or a model, as a plain Hugging Face folder")
    export.add_argument("source", metavar="RUN", help="a run directory, or a model: a .gguf file, a hub id, a folder")
    export.add_argument("out", type=Path)
    export.add_argument("--checkpoint", help="of a run: best (by held-out pass@1, the default), last, or a name")
    export.add_argument("--ema", action="store_true", help="the moving average instead of the weights")
    export.set_defaults(command=_export)

    merge = commands.add_parser("merge", help="average Hugging Face folders, weight by weight")
    merge.add_argument("folders", type=Path, nargs="+")
    merge.add_argument("--weights", type=float, nargs="+", required=True, help="one per folder, summing to 1")
    merge.add_argument("--out", type=Path, default=Path("merged"), help="a new folder; by default ./merged")
    merge.set_defaults(command=_merge)


def _train(options: argparse.Namespace) -> int:
    from groupwise.config import ConfigError, find_recipe, load_recipe

    if (options.recipe is None) == (options.resume is None):
        raise ConfigError("train: give a recipe, or --resume RUN, and not both")
    if options.resume is not None and (options.overrides or options.run_dir):
        raise ConfigError(
            "train --resume: a run goes on with the recipe and the folder it has; drop --set and --run-dir"
        )
    if options.resume is None and options.accept_verifier:
        raise ConfigError("train --accept-verifier: goes with --resume; a new run takes the verifier that there is")
    if options.ray and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("train --ray: starts the ranks itself; leave torchrun out")
    if not options.ray and (options.ray_ranks is not None or options.ray_address is not None):
        raise ConfigError("train --ray-ranks, --ray-address: go with --ray")
    if options.resume is None:
        # Read before torch is imported: a typo is answered at once.
        recipe = load_recipe(find_recipe(options.recipe), options.overrides)
    from groupwise.training import pipeline
    from groupwise.training.request import RunRequest

    if options.resume is not None:
        recipe, run_dir, limit = pipeline.recipe_of(options.resume), options.resume, options.memory_gib
        # What it was started with, unless there is less or more of it now.
        limit = pipeline.memory_limit_of(run_dir) if limit is None else limit
        request = RunRequest(recipe, run_dir, True, options.accept_verifier, limit)
    else:
        run_dir = options.run_dir or pipeline.default_run_dir(recipe)
        request = RunRequest(recipe, run_dir, memory_gib=options.memory_gib)
    if options.ray:
        from groupwise.cli.run_on_ray import run_on_ray

        # In full: the ranks may run elsewhere.
        request = replace(request, run_dir=run_dir.absolute())
        return _say_how_it_ended(request, run_on_ray(request, options.ray_ranks, options.ray_address))
    return _train_here(request)


def _train_here(request: RunRequest) -> int:
    """In this process, which may be one of the ranks that `torchrun` started."""
    from groupwise.distributed.world import join_world
    from groupwise.runs.progress import Progress
    from groupwise.training.pipeline import carry_out

    quiet_libraries()
    world = join_world()
    try:
        sinks = [Progress(request.recipe.total_steps), *watchers()]
        is_finished = carry_out(replace(request, sinks=sinks, world=world))
    finally:
        world.close()
    if world.rank > 0:
        return 0 if is_finished else 1
    return _say_how_it_ended(request, is_finished)


def _say_how_it_ended(request: RunRequest, is_finished: bool) -> int:
    if not is_finished:
        print(f"Stopped and saved. Go on with: groupwise train --resume {request.run_dir}")
        return 1
    print(f"Finished: {request.run_dir}")
    return 0


def _demo(options: argparse.Namespace) -> int:
    from groupwise.cli.demo import run_demo

    quiet_libraries()
    return run_demo(options.seed, options.run_dir)


def _recipes(options: argparse.Namespace) -> int:
    import json

    from groupwise.config import RECIPES, find_recipe, load_recipe, to_table

    if options.name is not None:
        path = find_recipe(options.name)
        print(
            json.dumps(_as_json(to_table(load_recipe(path))))
            if options.json
            else path.read_text(encoding="utf-8").rstrip()
        )
        return 0
    recipes = {path.stem: load_recipe(path) for path in sorted(RECIPES.glob("*.toml"))}
    stages = {name: [stage.name for stage in recipe.stages] for name, recipe in recipes.items()}
    if options.json:
        rows = [{"name": name, "stages": stages[name], "description": recipes[name].description} for name in recipes]
        print(json.dumps(rows))
        return 0
    for name, recipe in recipes.items():
        print(f"{name:24} {' → '.join(stages[name]):28} {recipe.description}")
    return 0


def _as_json(value: Any) -> Any:
    """JSON has no infinity: it is written as TOML does, in a string."""
    if isinstance(value, dict):
        return {key: _as_json(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(inner) for inner in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _tasks(options: argparse.Namespace) -> int:
    import json

    from groupwise.cli.describe import describe_fields, task_options
    from groupwise.tasks import list_tasks, task_class

    if options.name is not None:
        keys = ("key", "type", "default", "meaning")
        rows = [dict(zip(keys, field, strict=True)) for field in describe_fields(task_class(options.name))]
        print(json.dumps(rows) if options.json else task_options(options.name))
        return 0
    if options.json:
        print(json.dumps([{"name": name, "summary": summary} for name, summary in list_tasks().items()]))
        return 0
    for name, summary in list_tasks().items():
        print(f"{name:16} {summary}")
    print("module:Class     your own: a dataclass with `problems`, `score` and `verifier` (groupwise new begins one)")
    return 0


def _algorithms(options: argparse.Namespace) -> int:
    import json

    from groupwise.config import ALGORITHMS, SUMMARIES

    if options.json:
        rows = [
            {"name": name, "summary": SUMMARIES[name], "sets": _as_json(ALGORITHMS.get(name, {}))} for name in SUMMARIES
        ]
        print(json.dumps(rows))
        return 0
    for name, summary in SUMMARIES.items():
        print(f"{name:16} {summary}")
    return 0


def _export(options: argparse.Namespace) -> int:
    from groupwise.config import ConfigError
    from groupwise.models.export import export_model, export_run
    from groupwise.runs import layout

    run = Path(options.source)
    if (run / layout.RECIPE).is_file():
        export_run(run, options.out, checkpoint=options.checkpoint or "best", use_ema=options.ema)
    elif options.checkpoint is not None or options.ema:
        raise ConfigError(f"export {options.source}: --checkpoint and --ema are for a run directory, and it is none")
    else:
        export_model(options.source, options.out)
    print(f"Wrote {options.out}")
    return 0


def _merge(options: argparse.Namespace) -> int:
    from groupwise.models.merge import merge_folders

    merge_folders(options.folders, options.weights, options.out)
    print(f"Wrote {options.out}")
    return 0
