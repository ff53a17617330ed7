"""A finding in words: the change as one would type it, and the whole in one line for a log."""

from __future__ import annotations

import json
import shlex
from typing import Any

from groupwise.doctor.checks import DISEASES
from groupwise.doctor.finding import Change, Finding
from groupwise.runs import printable
from groupwise.runs.files import plain


def say_change(change: Change) -> str:
    if not change.key:
        return change.advice
    return f"--set {change.key}={_as_override(change.value)}  ({change.advice})"


def with_words(finding: Finding) -> dict[str, Any]:
    """As JSON, with its title and its change as people read them. What JSON lacks is null."""
    words = {"title": DISEASES[finding.disease].title, "say_change": say_change(finding.change)}
    return dict(plain(finding.to_json() | words))


def one_line(finding: Finding) -> str:
    """For the log of a run that goes on."""
    title = DISEASES[finding.disease].title
    return printable(
        f"{finding.severity}: {title} (stage {finding.stage}, step {finding.last_step}): {finding.seen}; "
        f"try {say_change(finding.change)}"
    )


def _as_override(value: Any) -> str:
    """As `--set` reads it, and as a shell leaves it."""
    if isinstance(value, float):
        return f"{value:g}"
    return shlex.quote(value if isinstance(value, str) else json.dumps(value))
