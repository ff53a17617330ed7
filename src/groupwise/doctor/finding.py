"""What the doctor reports: one record per check and stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["sick", "watch"]
"""`sick`: the run learns the wrong thing, or next to nothing; stop it and make the change. `watch`: the run can
continue, but something is wasted or may go wrong. These are the values in files; people read SEVERITY_WORDS."""

SEVERITY_WORDS: Mapping[str, str] = {"sick": "problem", "watch": "warning"}


@dataclass(frozen=True, slots=True)
class Change:
    """The fix that a finding proposes."""

    advice: str
    """One sentence; it says what to do when the key does not help."""
    key: str = ""
    """A key of the recipe, as `--set` takes it; "" when no key helps."""
    value: Any = None


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    stage: str
    first_step: int
    last_step: int
    seen: str
    """The evidence: a sentence with figures."""
    means: str
    change: Change
    figures: Mapping[str, float]
    """The numbers in `seen`, by metric or by name."""
    check: str = ""
    """A name in CHECKS, filled in by `examine`; the key `disease` in JSON."""

    def to_json(self) -> dict[str, Any]:
        table = asdict(self)
        return {"disease": table.pop("check"), **table}
