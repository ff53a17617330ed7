"""List the recipes, or print one.

Examples:
  groupwise recipes
  groupwise recipes gsm8k > my-recipe.toml
"""

from __future__ import annotations

from groupwise.base.json_values import plain
from groupwise.cli.arguments import Options, argument, json_option, takes
from groupwise.cli.printing import print_json, say_list
from groupwise.config import RECIPES, find_recipe, load_recipe, to_table


@takes(argument("name", "the recipe to print, as TOML", nargs="?"), json_option())
def run(options: Options) -> None:
    if options.name is not None:
        path = find_recipe(options.name)
        if options.json:
            print_json(plain(to_table(load_recipe(path)), str))
        else:
            print(path.read_text(encoding="utf-8").rstrip())
        return
    recipes = {path.stem: load_recipe(path) for path in sorted(RECIPES.glob("*.toml"))}
    stages = {name: [stage.name for stage in recipe.stages] for name, recipe in recipes.items()}
    if options.json:
        print_json(
            [{"name": name, "stages": stages[name], "description": recipes[name].description} for name in recipes]
        )
    else:
        say_list(((f"{name:24} {' → '.join(stages[name])}", recipes[name].description) for name in recipes), 53)
