"""Pages as single files: the script, style and skeleton from `assets/` that a page contains inline, and its saving.

Contract: `bundle_script` returns an entry module and all of its imports, each once and after its own imports, as a
classic script in strict mode in one scope. `bundle_style` joins style sheets in the given order. `fill_page` puts
values into a skeleton. The results are constants: a page's content security policy names their hashes.

Limits, each refused with a `BundleError`: no default, renamed or re-exported names; no import cycle; no top-level name
declared by two modules of a bundle; nothing that would end the enclosing element. This is not a parser: top-level
declarations begin in the first column of a line and declare one name each.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from groupwise.base.harmless import policy_hash
from groupwise.runs.files import write_atomic, writing

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
    """Return the entry module and all of its imports as one script."""
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
    """Return the style sheets, joined."""
    return _inert("\n" + "".join(map(read_asset, names)), ", ".join(names))


def fill_page(name: str, **values: str) -> str:
    """Return a skeleton with `values` in its `{{places}}`. Values are not searched for places."""
    skeleton = read_asset(name)
    places = set(_PLACE.findall(skeleton))
    if places != set(values):
        raise BundleError(f"{name}: places and values differ: {', '.join(sorted(places ^ set(values)))}")
    return _PLACE.sub(lambda match: values[match[1]], skeleton)


def content_policy(script: str, style: str) -> str:
    """Return the content security policy of a page in a file: only its own inline script and style."""
    return (
        f"default-src 'none'; script-src {policy_hash(script)}; style-src {policy_hash(style)}; "
        "base-uri 'none'; form-action 'none'"
    )


def save_text(path: Path, text: str) -> Path:
    """Write a whole page or table at once, make its folder if necessary, and return `path`."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, [text.encode("utf-8")])
    return path


def _inert(text: str, name: str) -> str:
    """Refuse text that would end the element that contains it."""
    if found := _ENDS_ELEMENT.search(text):
        raise BundleError(f"{name}: {found[0]!r} would end its element")
    return text
