"""What the doctor says: one record per disease and stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["sick", "watch"]
"""`sick`: the run learns the wrong thing, or next to nothing; stop and change it. `watch`: it goes on, but something is
wasted or may go wrong."""


@dataclass(frozen=True, slots=True)
class Change:
    """What to do about it."""

    advice: str
    """A sentence, with what to do where the key does not help."""
    key: str = ""
    """A key of the recipe, as `--set` takes it; "" where no key helps."""
    value: Any = None


@dataclass(frozen=True, slots=True)
class Finding:
    disease: str
    """A name in DISEASES."""
    severity: Severity
    stage: str
    first_step: int
    last_step: int
    seen: str
    """The figures, in a sentence."""
    means: str
    change: Change
    figures: Mapping[str, float]
    """The numbers of `seen`, by the name of the metric or of what was computed."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
