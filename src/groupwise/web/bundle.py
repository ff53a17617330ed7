"""Join the files of `assets/` into what a page carries inline: one script, one style, one skeleton.

Contract: `bundle_script` takes an entry module and everything that it imports, each module once and after what it
imports, and returns one classic script in strict mode in one scope. `bundle_style` joins style sheets in the order
given. `fill_page` puts values into a skeleton. The results are constants: a page's content policy names their hashes.

Limits, each refused with a `BundleError`: no default, renamed or re-exported names; no import cycle; no top-level name
that two modules of a bundle declare; nothing that would end the element which the text goes into. Top-level
declarations begin in the first column of a line and name one thing each: this is not a parser.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

ASSETS = Path(__file__).parent / "assets"

_IMPORT = re.compile(r'^import \{([^}]*)\}\s+from "\./([a-z0-9-]+\.js)";\n', re.MULTILINE)
_DECLARATION = re.compile(r"^(export )?(?:const|let|class|(?:async )?function) (\w+)", re.MULTILINE)
_LEFT_OVER = re.compile(r"^(?:import\b|export\b|(?:const|let) \W).*", re.MULTILINE)
_ENDS_ELEMENT = re.compile(r"</(?:script|style)|<!--", re.IGNORECASE)
_PLACE = re.compile(r"\{\{(\w+)\}\}")


class BundleError(ValueError):
    """An asset breaks a rule of the bundle."""


def read_asset(name: str, folder: Path = ASSETS) -> str:
    """Return the text of an asset."""
    return (folder / name).read_text(encoding="utf-8")


@lru_cache
def bundle_script(entry: str, folder: Path = ASSETS) -> str:
    """Return the entry module and all that it imports as one script."""
    bodies: dict[str, str] = {}
    exports: dict[str, set[str]] = {}
    owners: dict[str, str] = {}

    def add(name: str, importers: tuple[str, ...]) -> None:
        if name in importers:
            raise BundleError(f"import cycle: {' → '.join((*importers, name))}")
        if name in bodies:
            return
        source = read_asset(name, folder)
        for names, imported in _IMPORT.findall(source):
            add(imported, (*importers, name))
            unknown = {word.strip() for word in names.split(",")} - {""} - exports[imported]
            if unknown:
                raise BundleError(f"{name}: {imported} does not export {', '.join(sorted(unknown))}")
        body = _IMPORT.sub("", source)
        exports[name] = set()
        for is_exported, declared in _DECLARATION.findall(body):
            if declared in owners:
                raise BundleError(f"{declared} is declared by {owners[declared]} and by {name}")
            owners[declared] = name
            if is_exported:
                exports[name].add(declared)
        body = _DECLARATION.sub(lambda match: match[0].removeprefix("export "), body)
        if left := _LEFT_OVER.search(body):
            raise BundleError(f"{name}: the bundle cannot take {left[0]!r}")
        bodies[name] = body

    add(entry, ())
    return _inert(f'\n"use strict";\n(() => {{\n{"".join(bodies.values())}}})();\n', entry)


@lru_cache
def bundle_style(*names: str) -> str:
    """Return the style sheets one after the other."""
    return _inert("\n" + "".join(map(read_asset, names)), ", ".join(names))


def fill_page(name: str, **values: str) -> str:
    """Return a skeleton with `values` at its `{{places}}`. A value is not searched for places."""
    skeleton = read_asset(name)
    places = set(_PLACE.findall(skeleton))
    if places != set(values):
        raise BundleError(f"{name}: places and values differ: {', '.join(sorted(places ^ set(values)))}")
    return _PLACE.sub(lambda match: values[match[1]], skeleton)


def _inert(text: str, name: str) -> str:
    """Refuse what would end the element that holds the text."""
    if found := _ENDS_ELEMENT.search(text):
        raise BundleError(f"{name}: {found[0]!r} would end its element")
    return text
