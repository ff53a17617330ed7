"""What looks at every run while it trains."""

from __future__ import annotations

from groupwise.audit.held_out_watch import HeldOutWatch
from groupwise.doctor import LiveDoctor
from groupwise.runs.sinks import Sink


def watchers() -> list[Sink]:
    """The live doctor, and the comparison of training reward with held-out scores."""
    return [LiveDoctor(), HeldOutWatch()]
