"""Diagnosis of a run, after it or while it trains: what is wrong, what that means, and which recipe key to change.

    run directory ──▶ StageHistory ──▶ each of CHECKS ──▶ Finding

Reads the run directory and never the trainer. A check is a pure function of one stage's history. Most checks need many
steps before they report anything, and stay silent while the reward rises. Nothing here imports torch.
"""

from __future__ import annotations

from groupwise.doctor.checks import CHECKS, examine
from groupwise.doctor.live import LiveDoctor
from groupwise.doctor.stage_history import Finding, StageHistory, read_stages

__all__ = ["CHECKS", "Finding", "LiveDoctor", "StageHistory", "examine", "read_stages"]
