"""Import of the code that a recipe names as "module:name": tasks, rewards, process scorers and sinks of your own.

Contract: nothing else imports what a recipe names. What is imported, and from where, is logged before it runs. Modules
are found on the Python path and in the current folder. Refused are the standard library, whose functions are not meant
for this (`shutil:rmtree` is no sink), and modules that lie in a run directory: those may be somebody else's. A folder
named in PYTHONPATH is always allowed.

The caller checks that what it gets fits its place.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import logging
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from groupwise.base.harmless import printable
from groupwise.config.build import ConfigError, nearest, require

logger = logging.getLogger(__name__)

RUN_RECIPE = "recipe.toml"
RUN_FILES = ("run.lock", "run.json", "events.jsonl")
"""A folder with `RUN_RECIPE` and one of these is a run directory (groupwise.runs.layout)."""


def load_named(target: str, where: str) -> Any:
    """Return what "module:name" names, importing its module if needed. `where` begins the messages of errors."""
    module_name, _, name = target.partition(":")
    _refuse_standard_library(module_name, where)
    try:
        module = sys.modules.get(module_name) or _import(module_name, where)
    except ConfigError:
        raise
    except (ImportError, AttributeError, SyntaxError, TypeError, ValueError) as error:
        raise ConfigError(f"{where}: cannot import {module_name!r}: {error}") from error
    found = getattr(module, name, None)
    if found is None:
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        raise ConfigError(f"{where}: {module_name!r} has no {name!r}; {nearest(name, own)}")
    # Also what a module of your own has imported from there.
    made_by = found.func if isinstance(found, functools.partial) else found
    _refuse_standard_library(str(getattr(made_by, "__module__", "")), where)
    return found


def is_function(found: object, num_arguments: int) -> bool:
    """Return whether this is a function, or an object to call like one, for so many arguments. A class is not."""
    if not callable(found) or isinstance(found, type):
        return False
    try:
        inspect.signature(found).bind(*range(num_arguments))
    except (TypeError, ValueError):  # too many, too few, or without a signature
        return False
    return True


def _refuse_standard_library(module_name: str, where: str) -> None:
    top = module_name.partition(".")[0]
    require(
        top not in sys.stdlib_module_names,
        f"{where}: {top!r} belongs to Python's standard library; name a module of your own",
    )


def _import(module_name: str, where: str) -> ModuleType:
    top = module_name.partition(".")[0]
    here = os.getcwd()
    spec = importlib.util.find_spec(top) or PathFinder.find_spec(top, [here])
    if spec is not None and top != "groupwise":
        _refuse_run_dir(spec, where)
        logger.warning("%s", printable(f"{where}: importing {module_name} from {_place(spec)}"))
        if importlib.util.find_spec(top) is None:
            # Console scripts lack the current folder on their path. It stays there: the module may import more.
            sys.path.append(here)
            importlib.invalidate_caches()
    return importlib.import_module(module_name)


def _place(spec: ModuleSpec) -> Path:
    """Return the file of a module, or the folder of a package."""
    return Path(next(iter(spec.submodule_search_locations or ()), spec.origin or "")).absolute()


def _refuse_run_dir(spec: ModuleSpec, where: str) -> None:
    folder = _place(spec).parent.resolve()
    told = [Path(path).resolve() for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    for parent in (folder, *folder.parents):
        is_run = (parent / RUN_RECIPE).exists() and any((parent / name).exists() for name in RUN_FILES)
        require(
            not is_run or folder in told,
            f"{where}: {_place(spec)} lies in the run directory {parent}, and code in run directories is not "
            f"imported. If you trust it, move it out of the run directory, or set PYTHONPATH={folder}",
        )
