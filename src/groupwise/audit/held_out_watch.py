"""A warning at the end of a stage whose training reward rose without a significant rise of held-out pass@1.

That may be reward hacking or memorizing. The run continues; the event is `hollow_reward`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from groupwise.audit.held_out_gain import evaluates_greedily, held_out_gains
from groupwise.runs.reader import Run
from groupwise.runs.writer import RunLog
from groupwise.types import EvalRecord, StepRecord

logger = logging.getLogger(__name__)


class HeldOutWatch:
    """A watcher of the run log that compares reward and held-out pass@1 when a stage ends."""

    _log: RunLog

    def watch(self, log: RunLog) -> None:
        self._log = log

    def write_event(self, kind: str, fields: Mapping[str, Any]) -> None:
        if kind != "stage_finished":
            return
        run = Run(self._log.run_dir)
        for gain in held_out_gains(run.steps(), run.evals(), evaluates_greedily(run.recipe_if_any)):
            if gain.stage == fields["name"] and gain.is_suspicious:
                self._log.write_event("hollow_reward", step=fields["step"], **gain.to_json())
                logger.warning(
                    "stage %s: training reward rose by %.3f, held-out pass@1 by %.1f points (95 %% interval %.1f to "
                    "%.1f, which includes 0 or less); look for the cause with `groupwise audit %s`",
                    *(gain.stage, gain.reward_gain, 100 * gain.held_out_gain),
                    *(100 * gain.held_out_gain_low, 100 * gain.held_out_gain_high, run.path),
                )

    def write(self, record: StepRecord) -> None:
        pass

    def write_eval(self, record: EvalRecord) -> None:
        pass

    def close(self) -> None:
        pass
