"""A finding in words: the change as one would type it, and the whole finding in one line for a log."""

from __future__ import annotations

import json
import shlex
from typing import Any

from groupwise.base.harmless import printable
from groupwise.base.json_values import plain
from groupwise.doctor.checks import CHECKS
from groupwise.doctor.finding import SEVERITY_WORDS, Change, Finding


def say_change(change: Change) -> str:
    return f"{override}  ({change.advice})" if (override := say_override(change)) else change.advice


def say_override(change: Change) -> str:
    """Return the change as an option of the command line; "" when no key helps."""
    if not change.key:
        return ""
    value = change.value
    # As `--set` reads it, and as a shell leaves it.
    is_float = isinstance(value, float)
    text = f"{value:g}" if is_float else shlex.quote(value if isinstance(value, str) else json.dumps(value))
    return f"--set {change.key}={text}"


def with_words(finding: Finding) -> dict[str, Any]:
    """Return the finding as JSON, with its title, severity and change as people read them."""
    words = {
        "title": CHECKS[finding.check].title,
        "say_severity": SEVERITY_WORDS[finding.severity],
        "say_change": say_change(finding.change),
    }
    return dict(plain(finding.to_json() | words))


def one_line(finding: Finding) -> str:
    """Return the finding as one line for the log of a running training."""
    return printable(
        f"{SEVERITY_WORDS[finding.severity]}: {CHECKS[finding.check].title} (stage {finding.stage}, "
        f"step {finding.last_step}): {finding.seen}; try {say_change(finding.change)}"
    )
