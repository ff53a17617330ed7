"""The doctor beside a run that trains: the same diseases, over the newest steps, a few steps apart.

Contract: a sink like any other. Each disease is told once per stage, also over a resume: what was told before stands in
the run's events. Of completions it reads the file of the current step alone. It changes nothing and stops nothing.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from groupwise.doctor.chart import make_chart
from groupwise.doctor.diseases import examine
from groupwise.doctor.finding import Finding
from groupwise.doctor.texts import TextSigns, read_signs
from groupwise.doctor.wording import one_line
from groupwise.runlog import Run, layout
from groupwise.types import EvalRecord, StepRecord

logger = logging.getLogger(__name__)

EVENT = "finding"
"""The kind of the event in events.jsonl; its fields are those of a Finding."""
EVERY_STEPS = 5
WINDOW_STEPS = 200
"""What is looked at; more would make a look at a long run dear."""
KEPT_LOOKS = 8


class LiveDoctor:
    def __init__(self, run_dir: Path, recipe: Mapping[str, Any], tell: Callable[[Finding], None]) -> None:
        """`tell` keeps a finding with the run; the terminal gets a warning, beside the progress display."""
        self._run_dir = run_dir
        self._recipe = recipe
        self._tell = tell
        self._steps: deque[StepRecord] = deque(maxlen=WINDOW_STEPS)
        self._evals: list[EvalRecord] = []
        self._signs: deque[TextSigns] = deque(maxlen=KEPT_LOOKS)
        self._info: Mapping[str, Any] = {}
        self._told: set[tuple[str, str]] | None = None

    def write(self, record: StepRecord) -> None:
        if self._told is None:
            self._told = self._recall(record)
        if self._steps and self._steps[-1].stage != record.stage:
            self._steps.clear()
            self._signs.clear()
        self._steps.append(record)
        if record.stage_step % EVERY_STEPS == 0:
            self._look(record, self._told)

    def write_eval(self, record: EvalRecord) -> None:
        self._evals.append(record)

    def close(self) -> None:
        pass

    def _recall(self, record: StepRecord) -> set[tuple[str, str]]:
        """What a run that was resumed had before. The records since are in the files as well, and count once."""
        run = Run(self._run_dir)
        self._info = run.info if (self._run_dir / layout.INFO).is_file() else {}
        self._steps.extend(old for old in run.steps() if old.stage == record.stage and old.step < record.step)
        self._evals = run.evals()
        events = [event for event in run.events() if event.get("kind") == EVENT]
        return {(str(event.get("disease")), str(event.get("stage"))) for event in events}

    def _look(self, record: StepRecord, told: set[tuple[str, str]]) -> None:
        sign = read_signs(Run(self._run_dir), record.step)
        if sign is not None:
            self._signs.append(sign)
        signs = tuple(self._signs)
        chart = make_chart(
            record.stage, tuple(self._steps), tuple(self._evals), self._recipe, self._info, lambda: signs
        )
        for finding in examine([chart]):
            if (finding.disease, finding.stage) not in told:
                told.add((finding.disease, finding.stage))
                self._tell(finding)
                logger.warning("%s", one_line(finding))
