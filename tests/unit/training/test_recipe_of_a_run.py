"""The recipe of a run that is resumed."""

import json
from pathlib import Path

import pytest

from groupwise.config import ConfigError, dump_toml, fingerprint, to_table
from groupwise.training.setup import recipe_of
from tests.factories import tiny_recipe


def test_a_changed_recipe_is_refused_before_its_code_is_imported(tmp_path: Path) -> None:
    recipe = tiny_recipe()
    (tmp_path / "recipe.toml").write_text(dump_toml(to_table(recipe)))
    (tmp_path / "run.json").write_text(json.dumps({"fingerprint": fingerprint(recipe)}))
    assert recipe_of(tmp_path) == recipe
    (tmp_path / "recipe.toml").write_text(dump_toml(to_table(recipe) | {"task": {"name": "not_imported:Task"}}))
    with pytest.raises(ConfigError, match=f"was started with fingerprint {fingerprint(recipe)}.*restore recipe.toml"):
        recipe_of(tmp_path)
