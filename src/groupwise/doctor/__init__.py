"""What is wrong with a run, what that means, and which key to change: `groupwise doctor RUN`, and live while it trains.

    run directory ──▶ StageHistory ──▶ each of CHECKS ──▶ Finding

Reads the run directory and never the trainer. A check is a pure function of one stage's history. Most checks need many
steps before they report anything, and stay silent while the reward rises. Nothing here imports torch.
"""

from __future__ import annotations

from groupwise.doctor.chart import SEVERITY_WORDS, Change, Finding, Severity, StageHistory, read_charts
from groupwise.doctor.checks import CHECKS, DoctorCheck, examine
from groupwise.doctor.live import LiveDoctor

__all__ = [
    "CHECKS",
    "SEVERITY_WORDS",
    "Change",
    "DoctorCheck",
    "Finding",
    "LiveDoctor",
    "Severity",
    "StageHistory",
    "examine",
    "read_charts",
]
