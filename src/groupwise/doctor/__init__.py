"""What is wrong with a run, what that means, and which key to change: `groupwise doctor RUN`, and live while it trains.

    run directory ──▶ Chart (one stage) ──▶ each of DISEASES ──▶ Finding

Reads the run directory and never the trainer. A disease is a pure function of a chart; it needs several steps to speak
up, and a policy whose reward rises is let be. Nothing here imports torch.
"""

from __future__ import annotations

from groupwise.doctor.chart import StageHistory, read_charts
from groupwise.doctor.checks import DISEASES, Disease, examine
from groupwise.doctor.finding import Change, Finding, Severity
from groupwise.doctor.live import LiveDoctor

__all__ = [
    "DISEASES",
    "Change",
    "Disease",
    "Finding",
    "LiveDoctor",
    "Severity",
    "StageHistory",
    "examine",
    "read_charts",
]
