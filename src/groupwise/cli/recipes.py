"""List the recipes, or print one.

Examples:
  groupwise recipes
  groupwise recipes gsm8k > my-recipe.toml
"""

from __future__ import annotations

import argparse
import math
from typing import Any

from groupwise.cli.arguments import add_json
from groupwise.cli.printing import print_json, say_list


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="the recipe to print, as TOML")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    from groupwise.config import RECIPES, find_recipe, load_recipe, to_table

    if options.name is not None:
        path = find_recipe(options.name)
        if options.json:
            print_json(as_json(to_table(load_recipe(path))))
        else:
            print(path.read_text(encoding="utf-8").rstrip())
        return 0
    recipes = {path.stem: load_recipe(path) for path in sorted(RECIPES.glob("*.toml"))}
    stages = {name: [stage.name for stage in recipe.stages] for name, recipe in recipes.items()}
    if options.json:
        rows = [{"name": name, "stages": stages[name], "description": recipes[name].description} for name in recipes]
        print_json(rows)
    else:
        say_list(
            ((name, f"{' → '.join(stages[name]):28} {recipe.description}") for name, recipe in recipes.items()), 24
        )
    return 0


def as_json(value: Any) -> Any:
    """Return `value` with infinities, which JSON lacks, as the strings that TOML writes."""
    if isinstance(value, dict):
        return {key: as_json(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(inner) for inner in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value
