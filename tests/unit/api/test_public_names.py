"""What `import groupwise` offers, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import groupwise

NAMES = {
    *("ConfigError", "Message", "Problem", "Recipe", "Run", "Score", "Split", "Task", "Verdict"),
    *("GeneratedTask", "check_splits", "compare", "diagnose", "evaluate", "export", "final_answer"),
    *("last_tag", "load_recipe", "make_task", "plan", "report", "resume", "sample", "stable_id", "train"),
}


def test_the_public_names_are_these() -> None:
    assert set(groupwise.__all__) == NAMES
    assert set(dir(groupwise)) >= NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_each_name_is_there_and_documented(name: str) -> None:
    found = getattr(groupwise, name)
    assert name == "Split" or found.__doc__


def test_no_package_takes_the_place_of_a_name() -> None:
    """A package of that name would replace the function as soon as something imports it."""
    code = f"""
import importlib, pkgutil, groupwise
names = {NAMES!r}
assert not names & {{module.name for module in pkgutil.iter_modules(groupwise.__path__)}}
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_importing_it_loads_next_to_nothing() -> None:
    code = """
import sys
before = set(sys.modules)
import groupwise
loaded = {name.partition(".")[0] for name in set(sys.modules) - before} - {"groupwise"}
assert loaded <= set(sys.stdlib_module_names), loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'trian'; it has .*train"):
        groupwise.trian  # noqa: B018
