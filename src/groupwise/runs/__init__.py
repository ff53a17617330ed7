"""The run directory: the interface between training and everything that reads its results.

Training writes it through `RunLog`, holding a `RunLock`; reports, dashboard, doctor and sweeps read it through `Run`.
Nothing here imports torch. `layout.py` has the layout, `catalogue.py` the metrics, their meanings and their charts.
"""

from __future__ import annotations

from groupwise.runs.catalogue import CHARTS, METRICS, ChartSpec, Metric, UndeclaredMetric, metric
from groupwise.runs.files import RunLogError, RunReadError
from groupwise.runs.layout import RunNameError, validate_run_name
from groupwise.runs.lock import RunInUse, RunLock, read_holder
from groupwise.runs.reader import Run, last_turn
from groupwise.runs.records import group_from_json, group_to_json
from groupwise.runs.sinks import Sink, SinkError, make_sink
from groupwise.base.harmless import printable
from groupwise.runs.writer import RunLog

__all__ = [
    "CHARTS",
    "METRICS",
    "ChartSpec",
    "Metric",
    "Run",
    "RunInUse",
    "RunLock",
    "RunLog",
    "RunLogError",
    "RunNameError",
    "RunReadError",
    "Sink",
    "SinkError",
    "UndeclaredMetric",
    "group_from_json",
    "group_to_json",
    "last_turn",
    "make_sink",
    "metric",
    "printable",
    "read_holder",
    "validate_run_name",
]
