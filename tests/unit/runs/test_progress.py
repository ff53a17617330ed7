from __future__ import annotations

import io
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import pytest

from groupwise.base.text_layout import duration
from groupwise.runs.progress import DEAD_NOTE, NO_SIGNAL_NOTE, ZERO_LOSS_NOTE, Progress
from groupwise.types import StepRecord


def full_step(step: int, stage: str = "rl", **changes: float) -> StepRecord:
    metrics = {
        "reward/mean": 0.4123,
        "kl/ref_k3": 0.00123,
        "policy/clip_share": 0.0081,
        "policy/loss": 0.25,
        "rollouts/length_mean_tokens": 211.7,
        "engine/tokens_per_s": 812.4,
        "time/step_s": 2.0,
    }
    return StepRecord(step, stage, step, metrics | {name.replace("__", "/"): value for name, value in changes.items()})


def ticking(*times: float) -> Callable[[], float]:
    values = iter(times)
    return lambda: next(values)


def test_a_file_gets_one_plain_line_per_record(sample: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    stream = io.StringIO()
    progress = Progress(102, stream, clock=ticking(0.0, 4.0))
    progress.write(full_step(1))
    progress.write_eval(sample.eval(1))
    progress.write(full_step(2))
    progress.close()
    common = "kl 0.0012  clip 0.8 %  length 212  tokens/s 812"
    assert stream.getvalue().splitlines() == [
        f"step 1/102  rl  reward 0.412  {common}  left 3m22s",
        "held-out after step 1  rl  pass@1 0.300 [0.250, 0.350]  100 problems x 4",
        f"step 2/102  rl  reward 0.412  held-out 0.300 [0.250, 0.350]  {common}  left 5m00s",
    ]


class FakeNotebook:
    """The parts of IPython that the display uses, in a kernel. `shown` is the cell's output, as it is replaced."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []

    def get_ipython(self) -> Any:
        return types.SimpleNamespace(kernel=object())

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        self.shown.append(data)
        return types.SimpleNamespace(update=lambda data, raw: self.shown.append(data))


def test_a_notebook_has_one_output_that_is_replaced(
    sample: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = FakeNotebook()
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", notebook)
    progress = Progress(102, clock=ticking(0.0, 4.0))
    progress.write(full_step(1, stage="<b>[rl]"))
    progress.write_eval(sample.eval(1))
    progress.write(full_step(2))
    progress.close()
    assert capsys.readouterr() == ("", "")
    assert [data["text/plain"].split("  ")[0].strip() for data in notebook.shown] == [
        "",
        *("step 0/102",),
        *("step 1/102",) * 2,
        "step 2/102",
    ]
    first, last = notebook.shown[2], notebook.shown[-1]
    assert "&lt;b&gt;[rl]" in first["text/html"]
    assert "held-out 0.300 [0.250, 0.350]" in last["text/plain"]
    assert "\x1b" not in "".join(first.values())


def test_supervised_steps_show_their_own_loss() -> None:
    stream = io.StringIO()
    Progress(5, stream).write(StepRecord(1, "warm up", 1, {"sft/loss": 1.5}))
    assert stream.getvalue() == "step 1/5  warm up  sft loss 1.500\n"


@pytest.mark.parametrize("lacking", [(), ("policy/loss", "policy/grad_norm")])
def test_a_dead_run_is_said_from_the_first_steps_on(lacking: tuple[str, ...]) -> None:
    stream = io.StringIO()
    progress = Progress(10, stream)
    dead = {"policy__loss": 0.0, "policy__grad_norm": 0.0, "groups__signal_share": 0.0}
    for number in range(1, 7):
        record = full_step(number, **dead)
        metrics = {name: value for name, value in record.metrics.items() if name not in lacking}
        progress.write(StepRecord(number, "rl", number, metrics))
    notes = [line for line in stream.getvalue().splitlines() if line.startswith("note: ")]
    assert notes == [f"note: {NO_SIGNAL_NOTE}", f"note: {DEAD_NOTE}"]


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"policy__loss": 0.0}, ZERO_LOSS_NOTE),
        ({"policy__loss": -3e-9}, ZERO_LOSS_NOTE),
        ({"policy__loss": 0.0, "policy__grad_norm": 0.0}, NO_SIGNAL_NOTE),
        ({"policy__loss": 0.0, "groups__signal_share": 0.0}, NO_SIGNAL_NOTE),
        ({"policy__loss": 0.01}, ""),
        ({"policy__loss": float("nan")}, ""),
    ],
)
def test_a_loss_of_zero_in_the_first_step_is_explained(changes: dict[str, Any], note: str) -> None:
    stream = io.StringIO()
    progress = Progress(10, stream)
    progress.write(full_step(1, **changes))
    progress.write(full_step(2, **changes))
    notes = [line for line in stream.getvalue().splitlines() if line.startswith("note: ")]
    assert notes == ([f"note: {note}"] if note else [])


def test_control_codes_in_names_never_reach_the_stream() -> None:
    stream = io.StringIO()
    Progress(10, stream).write(full_step(1, stage="\x1b[31mred\x1b]0;x\x07\nstage"))
    assert "\x1b" not in stream.getvalue()
    assert stream.getvalue().count("\n") == 1
    assert "  red stage  " in stream.getvalue()


def test_a_stream_that_knows_only_ascii(tmp_path: Path) -> None:
    with open(tmp_path / "log", "w", encoding="ascii") as stream:
        Progress(10, stream).write(full_step(1, stage="étape 🎲"))
    assert "?tape ?" in (tmp_path / "log").read_text()


def test_a_reader_that_goes_away_does_not_stop_the_run() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    stream = open(write_end, "w", buffering=1)  # noqa: SIM115
    progress = Progress(10, stream)
    for step in (1, 2, 3):
        progress.write(full_step(step))
    progress.close()
    with pytest.raises(BrokenPipeError):
        stream.close()


def test_a_stream_that_was_closed_does_not_stop_the_run() -> None:
    stream = io.StringIO()
    progress = Progress(10, stream)
    stream.close()
    progress.write(full_step(1))
    progress.close()


class Terminal:
    """A pseudo-terminal, to see what a person would."""

    def __enter__(self) -> Terminal:
        self._master, slave = os.openpty()
        self.stream: TextIO = open(slave, "w", encoding="utf-8")
        return self

    def __exit__(self, *_: Any) -> None:
        self.stream.close()
        os.close(self._master)

    def seen(self) -> str:
        self.stream.flush()
        os.set_blocking(self._master, False)
        text = b""
        try:
            while chunk := os.read(self._master, 65536):
                text += chunk
        except BlockingIOError:
            pass
        return text.decode()


def test_a_terminal_gets_a_live_display(sample: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    stdout_before = sys.stdout
    with Terminal() as terminal:
        progress = Progress(100, terminal.stream)
        progress.write_eval(sample.eval(0))
        progress.write(full_step(1, stage="[bold]rl\x1b[2J", policy__loss=0.0))
        text = terminal.seen()
        progress.write(full_step(50))
        later = terminal.seen()
        progress.close()
        end = terminal.seen()
    for expected in (
        "step 1/100",
        "[bold]rl",
        "0.300 [0.250, 0.350]",
        "0.412",
        "0.8 %",
        "212",
        "812",
        "left",
        "A loss of 0",
    ):
        assert expected in text, expected
    assert "\x1b[2J" not in text
    assert "step 50/100" in later
    assert "A loss of 0" not in later, "the note leaves after the first steps"
    assert "\x1b[?25h" in end, "the cursor is shown again"
    assert sys.stdout is stdout_before


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with Terminal() as terminal:
        Progress(100, terminal.stream).write(full_step(1))
        text = terminal.seen()
    assert "\x1b" not in text
    assert text.startswith("step 1/100")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.4, "59s"),
        (59.6, "1m00s"),
        (200, "3m20s"),
        (7500, "2h05m"),
        (273600, "3d04h"),
        (float("nan"), "?"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
