"""Writer of the run directory: the trainer's only way to record what happened.

Contract: one writer at a time (hold a `RunLock`). Each step and each eval is one JSON line, appended at once and
flushed to the operating system. Files of rollouts appear whole or not at all, before the line that refers to them. A
failed write raises `RunLogError` with the file and the fix, and leaves no half line. Sinks get each record after it is
on disk. Checkpoints are not written here.
"""

from __future__ import annotations

import datetime
import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from groupwise.runs import layout
from groupwise.runs.catalogue import metric
from groupwise.runs.extent import Extent
from groupwise.runs.files import (
    TEMPORARY_SUFFIX,
    RunLogError,
    RunReadError,
    append_line,
    encode_line,
    plain,
    read_lines,
    read_records,
    repair_tail,
    write_atomic,
    writing,
)
from groupwise.runs.lock import RunLock
from groupwise.runs.records import eval_to_json, event_from_json, group_to_json, step_to_json, trace_to_json
from groupwise.runs.sinks import EventSink, Sink
from groupwise.types import EvalRecord, GroupTrace, ScoredGroup, StepRecord

LINES = (layout.METRICS, layout.EVALS, layout.EVENTS)
FOLDERS = (layout.ROLLOUTS, layout.TOKENS, layout.EVAL_ROLLOUTS)


class RunLog:
    def __init__(self, run_dir: Path, sinks: Sequence[Sink] = (), lock: RunLock | None = None) -> None:
        """Open or create the run directory. `lock` is confirmed before each write."""
        self.run_dir = Path(run_dir)
        self.confirm_lock: Callable[[], None] = lock.confirm if lock else lambda: None
        self._sinks = tuple(sinks)
        self._extents = {name: Extent() for name in (*LINES, *FOLDERS)}
        self._make_folders()
        for name in LINES:
            with writing(self.run_dir / name):
                repair_tail(self.run_dir / name)
        for watcher in self._watchers():
            watcher.watch(self)

    def write_recipe(self, text: str) -> None:
        """Keep the recipe, as TOML, with the run."""
        self._replace(self.run_dir / layout.RECIPE, [text.encode("utf-8")])

    def write_rewards(self, sources: Mapping[str, str]) -> None:
        """Keep the source of each reward function with the run, for people to read."""
        for name, source in sources.items():
            path = self.run_dir / layout.REWARDS / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            self._replace(path, [source.encode("utf-8", "replace")])

    def write_info(self, info: Mapping[str, Any]) -> None:
        """Write what does not change during the run: versions, machine, fingerprint …"""
        self._replace(self.run_dir / layout.INFO, [encode_line(plain(info))])

    def write_step(self, record: StepRecord) -> None:
        for name in record.metrics:
            metric(name)
        self._append(layout.METRICS, step_to_json(record))
        self._tell(lambda sink: sink.write(record))

    def write_rollouts(self, step: int, stage: str, groups: Sequence[ScoredGroup]) -> None:
        self._write_groups(layout.ROLLOUTS, step, stage, groups)

    def write_tokens(self, step: int, stage: str, traces: Sequence[GroupTrace]) -> None:
        """Write the traces of the groups that the step learned from, in the order of their rollouts."""
        lines = (encode_line({"step": step, "stage": stage, **trace_to_json(trace)}) for trace in traces)
        self._replace(self.run_dir / layout.TOKENS / layout.rollout_file(step), lines)

    def write_eval(self, record: EvalRecord, groups: Sequence[ScoredGroup]) -> None:
        self._write_groups(layout.EVAL_ROLLOUTS, record.step, record.stage, groups)
        self._append(layout.EVALS, eval_to_json(record))
        self._tell(lambda sink: sink.write_eval(record))

    def write_event(self, kind: str, /, **fields: Any) -> None:
        """Record something that is not a measurement: started, resumed, checkpoint skipped, stopped …"""
        if clash := fields.keys() & {"time", "kind"}:
            raise ValueError(f"the log sets {' and '.join(sorted(clash))} of an event itself; use other names")
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        self._append(layout.EVENTS, {"time": now, "kind": kind, **plain(fields)})
        for watcher in self._watchers():
            watcher.write_event(kind, fields)

    def rewind(self, step: int, *, eval_step: int | None = None, rollout_step: int | None = None) -> None:
        """Drop what came after `step`, so that a resumed run writes it only once. Events stay: they did happen.

        `eval_step` is the newest evaluation to keep, `step` by default. `rollout_step` is the newest step whose
        rollouts to keep, when the checkpoint contains those of an unfinished step.
        """
        eval_step = step if eval_step is None else eval_step
        rollout_step = step if rollout_step is None else rollout_step
        folders = {layout.ROLLOUTS: rollout_step, layout.TOKENS: step, layout.EVAL_ROLLOUTS: eval_step}
        with writing(self.run_dir):
            self._rewind_lines(self.run_dir / layout.METRICS, step)
            self._rewind_lines(self.run_dir / layout.EVALS, eval_step)
            for folder, newest in folders.items():
                for path in sorted((self.run_dir / folder).iterdir()):
                    number = layout.rollout_step(path.name)
                    if path.name.endswith(TEMPORARY_SUFFIX) or (number is not None and number > newest):
                        path.unlink()

    def notes(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of each log, for `differences`."""
        for name, extent in self._extents.items():
            with writing(self.run_dir / name):
                extent.read(self.run_dir / name)
        return {name: extent.note() for name, extent in self._extents.items()}

    def differences(self, notes: Mapping[str, Any]) -> list[str]:
        """Return how the logs differ from the notes of a checkpoint, a sentence for each. What came later is ignored.

        Earlier versions made no notes, and nothing differs from none.
        """
        found = []
        # Of events, which stay, a damaged line that came later is refused as well.
        read_records(self.run_dir / layout.EVENTS, event_from_json)
        for name in self._extents.keys() & notes.keys():
            path, noted, extent = self.run_dir / name, notes[name], Extent()
            try:
                extent.read(path, noted["size_bytes"])
            except OSError as error:
                found.append(f"{path} cannot be read: {error}")
                continue
            if extent.note() == noted:
                self._extents[name] = extent
            elif extent.size_bytes < noted["size_bytes"]:
                found.append(f"{path} has {extent.size_bytes:,} bytes of {noted['size_bytes']:,}: the rest is missing")
            else:
                found.append(f"{path} was changed after it was written, or a part is missing")
        return sorted(found)

    def set_aside(self) -> None:
        """Move all logs and checkpoints to a new folder RUN/old-N, so that the run can start over.

        With copies of the recipe and the info, that folder can be read like any run.
        """
        numbered = (self.run_dir / f"{layout.OLD}-{number}" for number in itertools.count(1))
        folder = next(path for path in numbered if not path.exists())
        with writing(folder):
            folder.mkdir()
            for name in (layout.CHECKPOINTS, *LINES, *FOLDERS):
                if (self.run_dir / name).exists():
                    (self.run_dir / name).rename(folder / name)
            for name in (layout.RECIPE, layout.INFO):
                if (self.run_dir / name).exists():
                    shutil.copy(self.run_dir / name, folder)
            self._make_folders()
        self._extents = {name: Extent() for name in self._extents}
        self.write_event("started_over", old=folder.name)

    def close(self) -> None:
        self._tell(lambda sink: sink.close())

    def _make_folders(self) -> None:
        for name in FOLDERS:
            with writing(self.run_dir / name):
                (self.run_dir / name).mkdir(parents=True, exist_ok=True)

    def _rewind_lines(self, path: Path, step: int) -> None:
        repair_tail(path)
        lines = list(read_lines(path))
        kept = []
        for number, table in lines:
            if not isinstance(table.get("step"), int):
                raise RunReadError(f"{path}, line {number}: it has no step; delete that line to continue")
            if table["step"] <= step:
                kept.append(table)
        if len(kept) < len(lines):
            write_atomic(path, (encode_line(plain(table)) for table in kept))

    def _append(self, name: str, table: Mapping[str, Any]) -> None:
        path = self.run_dir / name
        self.confirm_lock()
        with writing(path):
            append_line(path, encode_line(table), fsync=False)

    def _write_groups(self, folder: str, step: int, stage: str, groups: Sequence[ScoredGroup]) -> None:
        def lines() -> Iterator[bytes]:
            for scored in groups:
                try:
                    yield encode_line({"step": step, "stage": stage, **group_to_json(scored)})
                except (TypeError, ValueError) as error:
                    problem = scored.group.prompt.problem.id
                    raise RunLogError(f"problem {problem!r} has a value that JSON cannot represent: {error}") from error

        self._replace(self.run_dir / folder / layout.rollout_file(step), lines())

    def _replace(self, path: Path, chunks: Iterable[bytes]) -> None:
        self.confirm_lock()
        with writing(path):
            write_atomic(path, chunks, fsync=False)

    def _watchers(self) -> list[EventSink]:
        return [sink for sink in self._sinks if isinstance(sink, EventSink)]

    def _tell(self, call: Callable[[Sink], None]) -> None:
        for sink in self._sinks:
            try:
                call(sink)
            except OSError as error:
                raise RunLogError(f"{type(sink).__name__} could not write: {error}") from error
