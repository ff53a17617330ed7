"""The program in a completion, found by lines alone: model text is not parsed in our process.

Of several fenced blocks the first of these counts: the last one marked as Python that defines the entry point, the last
one that defines it, the last one marked as Python, the last one. An unclosed block extends to the end of the text.
Without a block, the whole completion is the program if it defines the entry point, or if it continues the problem's
code with an indented line; the sandbox decides whether it is Python.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_FENCE = re.compile(r"[ \t]*+(`{3,}+|~{3,}+)[ \t]*+([^\s`]*+)[^`]*+")
_PYTHON = {"python", "py", "python3", "python2", "ipython"}


@dataclass(frozen=True, slots=True)
class Program:
    sources: tuple[str, ...]
    """Candidates in order: the first that compiles is the program."""
    is_fenced: bool


def find_program(completion: str, entry_point: str = "", preamble: str = "") -> Program | None:
    """Return the program, with and without `preamble` before it; None where there is none."""
    defines = _definition(entry_point)
    blocks = _blocks(completion)
    if blocks:
        ranked = [
            (bool(defines and defines.search(text)), language in _PYTHON, place)
            for place, (language, text) in enumerate(blocks)
        ]
        text = blocks[max(ranked)[2]][1]
    else:
        is_continued = bool(preamble) and completion.lstrip("\r\n")[:1] in (" ", "\t")
        is_program = defines is None or bool(defines.search(completion)) or is_continued
        if not completion.strip() or not is_program:
            return None
        text = completion
    sources = (f"{preamble}\n{text}", text) if preamble else (text,)
    return Program(sources, bool(blocks))


def _definition(entry_point: str) -> re.Pattern[str] | None:
    """Return a pattern for definitions of the first name of `add` or `Solution().add`."""
    name = re.match(r"\w+", entry_point)
    if name is None:
        return None
    return re.compile(rf"^(?:(?:async[ \t]+)?def|class)[ \t]+{name[0]}\b|^{name[0]}[ \t]*(?::[^=\n]*)?=", re.MULTILINE)


def _blocks(text: str) -> list[tuple[str, str]]:
    """Return (language, content) of each fenced block."""
    blocks: list[tuple[str, str]] = []
    fence, language, indent, lines = "", "", 0, list[str]()
    for line in text.split("\n"):  # not splitlines: a string in the code may hold a form feed
        match = _FENCE.fullmatch(line)
        if fence:
            if match and match[1].startswith(fence) and not line.strip().strip(fence[0]):
                blocks.append((language, "\n".join(lines)))
                fence = ""
            else:
                lines.append(line[min(indent, len(line) - len(line.lstrip())) :])
        elif match:
            fence, language, lines = match[1], match[2].lower(), []
            indent = len(line) - len(line.lstrip())
    if fence:
        blocks.append((language, "\n".join(lines)))
    return blocks
