"""The doctor beside a run in training: the same checks on the newest steps, every few steps and when a stage ends.

Contract: a watcher of the run's log. Each finding is reported once per stage, also after a resume: earlier findings
are read from the run's events. It reads the completions of the current step only, changes nothing and stops nothing.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

from groupwise.doctor.checks import examine
from groupwise.doctor.stage_history import StageHistory
from groupwise.doctor.text_signs import TextSigns, read_signs
from groupwise.doctor.wording import log_message
from groupwise.runs import Run
from groupwise.runs.records import DEAD_STEPS
from groupwise.runs.writer import RunLog
from groupwise.types import EvalRecord, StepRecord

logger = logging.getLogger(__name__)

EVENT = "finding"
"""The kind of the event in events.jsonl; its fields are those of a Finding."""
EVERY_STEPS = 5
WINDOW_STEPS = 200
"""Number of steps that are checked; more would make checks on long runs expensive."""
KEPT_LOOKS = 8


class LiveDoctor:
    """Write findings as events of the run, and as warnings beside the progress display."""

    _log: RunLog

    def __init__(self) -> None:
        self._recipe: Mapping[str, Any] = {}
        self._steps: deque[StepRecord] = deque(maxlen=WINDOW_STEPS)
        self._evals: list[EvalRecord] = []
        self._signs: deque[TextSigns] = deque(maxlen=KEPT_LOOKS)
        self._read_step = -1
        """The newest step whose completions were read."""
        self._info: Mapping[str, Any] = {}
        self._reported: set[tuple[str, str]] | None = None
        """Check and stage; None until the first step."""

    def watch(self, log: RunLog) -> None:
        self._log = log

    def write(self, record: StepRecord) -> None:
        if self._reported is None:
            self._reported = self._recall(record)
        if self._steps and self._steps[-1].stage != record.stage:
            self._steps.clear()
            self._signs.clear()
        self._steps.append(record)
        # A run that does not learn is reported as soon as that is known.
        if record.stage_step % EVERY_STEPS == 0 or record.stage_step == DEAD_STEPS:
            self._look(record, self._reported)

    def write_eval(self, record: EvalRecord) -> None:
        self._evals.append(record)

    def write_event(self, kind: str, fields: Mapping[str, Any]) -> None:
        if kind == "stage_finished" and self._steps and self._reported is not None:
            self._look(self._steps[-1], self._reported)

    def close(self) -> None:
        pass

    def _recall(self, record: StepRecord) -> set[tuple[str, str]]:
        """Read what a resumed run recorded before. Records written since are in the files too, and count once."""
        run = Run(self._log.run_dir)
        self._recipe, self._info = run.recipe_if_any, run.info_if_any
        self._steps.extend(old for old in run.steps() if old.stage == record.stage and old.step < record.step)
        self._evals = run.evals()
        events = [event for event in run.events() if event.get("kind") == EVENT]
        return {(str(event.get("check")), str(event.get("stage"))) for event in events}

    def _look(self, record: StepRecord, reported: set[tuple[str, str]]) -> None:
        sign = None if record.step == self._read_step else read_signs(Run(self._log.run_dir), record.step)
        self._read_step = record.step
        if sign is not None:
            self._signs.append(sign)
        signs = tuple(self._signs)
        steps, evals = tuple(self._steps), tuple(self._evals)
        stage = StageHistory(record.stage, steps, evals, self._recipe, self._info, lambda: signs)
        for finding in examine([stage]):
            if (finding.check, finding.stage) not in reported:
                reported.add((finding.check, finding.stage))
                self._log.write_event(EVENT, **finding.to_json())
                logger.warning("%s", log_message(finding))
