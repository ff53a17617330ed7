"""The `groupwise` command. Imports happen inside each command, so that --help is instant and nothing loads in vain."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0 for success, 1 for a failed run, 2 for input that cannot be used."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options))
    except (ValueError, RuntimeError) as error:
        # Our own errors say what happened and what to do; a stranger's deserves its traceback.
        if not type(error).__module__.startswith("groupwise."):
            raise
        print(f"groupwise: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1


def _parser() -> argparse.ArgumentParser:
    from groupwise import __version__

    parser = argparse.ArgumentParser(prog="groupwise", description="Teach a language model to reason, and prove it.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = commands.add_parser("train", help="run a recipe, or resume a run")
    train.add_argument("recipe", nargs="?", help="a TOML file, or the name of one of `groupwise recipes`")
    train.add_argument("--resume", metavar="RUN", type=Path, help="go on with this run directory")
    train.add_argument("--run-dir", type=Path, help="where the run goes; by default runs/NAME-FINGERPRINT")
    train.add_argument("--set", action="append", default=[], metavar="a.b=c", dest="overrides", help="override a key")
    train.set_defaults(command=_train)

    demo = commands.add_parser("demo", help="watch a tiny model learn on the CPU, in minutes, with no download")
    demo.add_argument("--seed", type=int, default=0)
    demo.add_argument("--run-dir", type=Path, help="by default a new folder under runs/")
    demo.set_defaults(command=_demo)

    recipes = commands.add_parser("recipes", help="list the recipes, or print one")
    recipes.add_argument("name", nargs="?")
    recipes.set_defaults(command=_recipes)

    tasks = commands.add_parser("tasks", help="list the tasks, or the options of one")
    tasks.add_argument("name", nargs="?")
    tasks.set_defaults(command=_tasks)

    algorithms = commands.add_parser("algorithms", help="list the algorithms and what each chooses")
    algorithms.set_defaults(command=_algorithms)

    export = commands.add_parser("export", help="write a run's weights as a plain Hugging Face folder")
    export.add_argument("run", type=Path)
    export.add_argument("out", type=Path)
    export.add_argument("--checkpoint", default="best", help="best (by held-out pass@1), last, or a name; default best")
    export.add_argument("--ema", action="store_true", help="the moving average instead of the weights")
    export.set_defaults(command=_export)

    merge = commands.add_parser("merge", help="average Hugging Face folders, weight by weight")
    merge.add_argument("folders", type=Path, nargs="+")
    merge.add_argument("--weights", type=float, nargs="+", required=True, help="one per folder, summing to 1")
    merge.add_argument("--out", type=Path, default=Path("merged"), help="a new folder; by default ./merged")
    merge.set_defaults(command=_merge)
    return parser


def _train(options: argparse.Namespace) -> int:
    from groupwise.config import ConfigError, load_recipe

    if (options.recipe is None) == (options.resume is None):
        raise ConfigError("train: give a recipe, or --resume RUN, and not both")
    if options.resume is not None and (options.overrides or options.run_dir):
        raise ConfigError(
            "train --resume: a run goes on with the recipe and the folder it has; drop --set and --run-dir"
        )
    if options.resume is None:
        # Read before torch is imported: a typo is answered at once.
        recipe = load_recipe(_recipe_path(options.recipe), options.overrides)
    from groupwise import pipeline
    from groupwise.runlog.progress import Progress

    _quiet_libraries()
    if options.resume is not None:
        recipe, run_dir = pipeline.recipe_of(options.resume), options.resume
        is_finished = pipeline.resume(run_dir, [Progress(recipe.total_steps)])
    else:
        run_dir = options.run_dir or pipeline.default_run_dir(recipe)
        is_finished = pipeline.train(recipe, run_dir, [Progress(recipe.total_steps)])
    if not is_finished:
        print(f"Stopped and saved. Go on with: groupwise train --resume {run_dir}")
        return 1
    print(f"Finished: {run_dir}")
    return 0


def _demo(options: argparse.Namespace) -> int:
    from groupwise.demo import run_demo

    _quiet_libraries()
    return run_demo(options.seed, options.run_dir)


def _recipes(options: argparse.Namespace) -> int:
    from groupwise.config import load_recipe

    if options.name is not None:
        print(_recipe_path(options.name).read_text(encoding="utf-8"), end="")
        return 0
    for path in sorted(_recipe_folder().glob("*.toml")):
        recipe = load_recipe(path)
        print(f"{path.stem:24} {' → '.join(stage.name for stage in recipe.stages):28} {recipe.description}")
    return 0


def _tasks(options: argparse.Namespace) -> int:
    from groupwise.reference import task_options
    from groupwise.tasks import list_tasks

    if options.name is not None:
        print(task_options(options.name))
        return 0
    for name, summary in list_tasks().items():
        print(f"{name:16} {summary}")
    print("module:Class     your own: a dataclass with `problems`, `score` and `verifier`")
    return 0


def _algorithms(options: argparse.Namespace) -> int:
    from groupwise.config import SUMMARIES

    for name, summary in SUMMARIES.items():
        print(f"{name:16} {summary}")
    return 0


def _export(options: argparse.Namespace) -> int:
    from groupwise.models.export import export_run

    export_run(options.run, options.out, checkpoint=options.checkpoint, use_ema=options.ema)
    print(f"Wrote {options.out}")
    return 0


def _merge(options: argparse.Namespace) -> int:
    from groupwise.models.merge import merge_folders

    merge_folders(options.folders, options.weights, options.out)
    print(f"Wrote {options.out}")
    return 0


def _quiet_libraries() -> None:
    """Our progress display is the one that is shown; loading bars of others would break it up."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def _recipe_folder() -> Path:
    return Path(__file__).parent / "recipes"


def _recipe_path(given: str) -> Path:
    """A file as given, or one of the recipes that come with groupwise."""
    from groupwise.config import ConfigError, nearest

    path = Path(given)
    if path.suffix == ".toml" or path.exists():
        return path
    known = {recipe.stem: recipe for recipe in _recipe_folder().glob("*.toml")}
    if given not in known:
        raise ConfigError(f"no recipe named {given!r}; {nearest(given, known)}")
    return known[given]


if __name__ == "__main__":
    sys.exit(main())
