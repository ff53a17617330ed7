"""Copies of the metrics for other tools: TensorBoard, Weights & Biases, trackio.

Contract: a sink is made from (run_dir, run_name, recipe_table), gets each record once, in order, and is closed at the
end. Its package is imported when the sink is made; a missing one raises a `ConfigError` that says what to install. A
resumed run writes the steps after its checkpoint again: TensorBoard drops the old ones, W&B and trackio continue the
same run and show both. Sinks see metrics and evals, never completions.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from groupwise.config.build import ConfigError, nearest, require
from groupwise.config.named_code import load_named
from groupwise.runs import layout
from groupwise.runs.records import eval_metrics
from groupwise.types import EvalRecord, StepRecord

if TYPE_CHECKING:
    from groupwise.runs.writer import RunLog

PROJECT = "groupwise"

SINKS: dict[str, str] = {
    "tensorboard": "groupwise.runs.sinks:TensorBoardSink",
    "wandb": "groupwise.runs.sinks:WandbSink",
    "trackio": "groupwise.runs.sinks:TrackioSink",
}
"""Sinks by the name that a recipe uses. A recipe may also name your own "module:Class"."""


class Sink(Protocol):
    def write(self, record: StepRecord) -> None: ...

    def write_eval(self, record: EvalRecord) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class EventSink(Sink, Protocol):
    """A sink that also receives events and may write some, such as the live doctor."""

    def watch(self, log: RunLog) -> None:
        """Called once, when the run's log is opened."""

    def write_event(self, kind: str, fields: Mapping[str, Any]) -> None: ...


def tracked_name(run_dir: Path) -> str:
    """Return the name of a run in trackers: its folder; in a sweep, SWEEP-ARM-FOLDER, as each arm has a seed-0."""
    folder = run_dir.resolve()
    arm = folder.parent
    sweep = arm.parent.parent
    if arm.parent.name == layout.SWEEP_RUNS and (sweep / layout.SWEEP).is_file():
        return f"{sweep.name}-{arm.name}-{folder.name}"
    return folder.name


def make_sink(name: str, run_dir: Path, run_name: str, recipe_table: Mapping[str, Any]) -> Sink:
    """Make the sink that a recipe names, by a name in SINKS or as "module:Class"."""
    target = SINKS.get(name, name)
    require(
        ":" in target,
        f"logging.sinks: unknown sink {name!r} (your own is written 'module:Class'); {nearest(name, SINKS)}",
    )
    found = load_named(target, f"logging.sinks: {name!r}")
    has_methods = all(callable(getattr(found, method, None)) for method in ("write", "write_eval", "close"))
    is_sink = isinstance(found, type) and has_methods
    require(is_sink, f"logging.sinks: {name!r}: not a class with the methods write, write_eval and close")
    sink: Sink = found(run_dir, run_name, recipe_table)
    return sink


class _Tracker:
    """A sink of numbers by step."""

    def write(self, record: StepRecord) -> None:
        self._log(record.step, record.metrics)

    def write_eval(self, record: EvalRecord) -> None:
        self._log(record.step, eval_metrics(record))

    def _log(self, step: int, metrics: Mapping[str, float]) -> None:
        raise NotImplementedError


class TensorBoardSink(_Tracker):
    """Event files under RUN/tensorboard, written by the tensorboard package itself, without torch."""

    def __init__(self, run_dir: Path, run_name: str, recipe_table: Mapping[str, Any]) -> None:
        writers = _import_extra("tensorboard.summary.writer.event_file_writer", "tensorboard")
        self._event = _import_extra("tensorboard.compat.proto.event_pb2", "tensorboard")
        self._summary = _import_extra("tensorboard.compat.proto.summary_pb2", "tensorboard")
        self._writer = writers.EventFileWriter(str(Path(run_dir) / "tensorboard"))
        self._has_started = False

    def close(self) -> None:
        self._writer.close()

    def _log(self, step: int, metrics: Mapping[str, float]) -> None:
        if not self._has_started:
            # Makes TensorBoard drop this step and later ones from the event files of an earlier process.
            start = self._event.SessionLog(status=self._event.SessionLog.START)
            self._writer.add_event(self._event.Event(wall_time=time.time(), step=step, session_log=start))
            self._has_started = True
        values = [self._summary.Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        summary = self._summary.Summary(value=values)
        self._writer.add_event(self._event.Event(wall_time=time.time(), step=step, summary=summary))
        self._writer.flush()


class WandbSink(_Tracker):
    """One W&B run per run directory; a resumed run continues it."""

    def __init__(self, run_dir: Path, run_name: str, recipe_table: Mapping[str, Any]) -> None:
        wandb = _import_extra("wandb", "wandb")
        # Run directories of the same name, on one machine or several, are different runs.
        place = f"{socket.gethostname()}:{Path(run_dir).resolve()}"
        self._run = wandb.init(
            project=PROJECT,
            name=run_name,
            id=f"{run_name}-{hashlib.sha256(place.encode()).hexdigest()[:8]}",
            dir=str(run_dir),
            config=dict(recipe_table),
            resume="allow",
        )
        # W&B's own step must grow with every call; a resumed run and an eval after a step would break that.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def close(self) -> None:
        self._run.finish()

    def _log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({**_finite(metrics), "step": step})


class TrackioSink(_Tracker):
    """Local, with the calls of W&B; the run's name identifies it, so a resumed run continues it."""

    def __init__(self, run_dir: Path, run_name: str, recipe_table: Mapping[str, Any]) -> None:
        trackio = _import_extra("trackio", "trackio")
        self._run = trackio.init(project=PROJECT, name=run_name, config=dict(recipe_table), resume="allow")

    def close(self) -> None:
        self._run.finish()

    def _log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(_finite(metrics), step=step)


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _import_extra(module_name: str, extra: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A package that lacks one of its own dependencies is a different problem, with a different message.
        if (error.name or "").partition(".")[0] != extra:
            raise
        raise ConfigError(f"the sink {extra!r} needs a package: pip install groupwise[{extra}]") from error
