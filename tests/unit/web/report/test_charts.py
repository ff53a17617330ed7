"""Charts as data: what is drawn is what was measured, and the CSV and the pictures have the same."""

import csv
import io
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groupwise.types import StepRecord
from groupwise.web.report.charts import LOG_CAPTION, MAX_POINTS, Chart, Line, curves, smooth, smooth_logs, thinned
from groupwise.web.report.inputs import read_sources
from groupwise.web.report.plots import chart_csv, write_plots

values = st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), max_size=120)


def run_of(make: Any, tmp_path: Path, metrics: list[dict[str, float]], name: str = "run", **more: Any) -> Any:
    steps = [StepRecord(number, "grpo", number, table) for number, table in enumerate(metrics, start=1)]
    return read_sources([make.run(tmp_path / name, steps, **more)]).runs[0]


@given(values)
def test_smoothing_is_a_mean_over_known_neighbours(numbers: list[float]) -> None:
    reach = max(2, len(numbers) // 50)
    for index, mean in enumerate(smooth(numbers)):
        near = [v for other, v in enumerate(numbers) if abs(other - index) <= reach and not math.isnan(v)]
        if near:
            assert mean == pytest.approx(sum(near) / len(near), abs=1e-6)
        else:
            assert math.isnan(mean)


def test_long_runs_are_thinned_by_means() -> None:
    assert thinned([1.0, 2.0, math.nan]) != ()
    many = [float(number) for number in range(3 * MAX_POINTS)]
    short = thinned(many)
    assert len(short) == MAX_POINTS
    assert short[:2] == (1.0, 4.0)
    assert sum(short) / len(short) == pytest.approx(sum(many) / len(many))


def test_only_what_was_measured_is_drawn(make: Any, tmp_path: Path) -> None:
    metrics = [{"reward/mean": 0.5, "policy/grad_norm": math.nan}, {"reward/mean": 0.7, "policy/grad_norm": math.nan}]
    charts = curves([run_of(make, tmp_path, metrics)])
    assert [chart.name for chart in charts] == ["reward"]
    assert charts[0].lines[0].x == (1.0, 2.0)
    assert charts[0].lines[0].y == (0.5, 0.7)


def test_each_kl_has_its_own_chart_and_caption(make: Any, tmp_path: Path) -> None:
    metrics = {"policy/approx_kl": 0.01, "kl/ref_k3": 0.02}
    charts = {chart.name: chart for chart in curves([run_of(make, tmp_path, [metrics] * 3)])}
    assert list(charts) == ["kl", "step_kl"]
    assert "reference" in charts["kl"].caption
    assert "update" in charts["step_kl"].caption
    assert "reference" not in charts["step_kl"].caption
    # With one update per step it is 0 by construction, and is not drawn.
    still = run_of(make, tmp_path, [metrics | {"policy/approx_kl": 0.0}] * 3, "still")
    assert [chart.name for chart in curves([still])] == ["kl"]


def test_dead_groups_are_shares_of_those_sampled(make: Any, tmp_path: Path) -> None:
    metrics = [
        {"groups/count": 8.0, "groups/dead_all_wrong": 2.0, "groups/dead_all_correct": 0.0},
        {"groups/count": 0.0, "groups/dead_all_wrong": 0.0, "groups/dead_all_correct": 0.0},
        {"groups/count": 4.0, "groups/dead_all_wrong": 1.0, "groups/dead_all_correct": 3.0},
    ]
    (chart,) = [c for c in curves([run_of(make, tmp_path, metrics)]) if c.name == "dead_groups"]
    assert [(line.name, line.x, line.y) for line in chart.lines] == [
        ("all wrong", (1.0, 3.0), (0.25, 0.25)),
        ("all correct", (1.0, 3.0), (0.0, 0.75)),
    ]


def test_a_supervised_loss_is_not_drawn_twice(make: Any, tmp_path: Path) -> None:
    run = run_of(make, tmp_path, [{"sft/loss": 2.0, "policy/loss": 2.0}, {"policy/loss": 0.0}])
    found = {chart.name: [line.y for line in chart.lines] for chart in curves([run])}
    assert found == {"sft_loss": [(2.0,)], "loss": [(0.0,)]}


def test_several_runs_share_a_chart(make: Any, tmp_path: Path) -> None:
    runs = [run_of(make, tmp_path, [{"reward/mean": value}], name) for name, value in (("a", 0.1), ("b", 0.2))]
    (chart,) = curves(runs)
    assert [(line.run, line.y) for line in chart.lines] == [(0, (0.1,)), (1, (0.2,))]


def test_what_explodes_is_drawn_on_a_logarithmic_axis(make: Any, tmp_path: Path) -> None:
    calm = [{"policy/grad_norm": 0.4, "kl/ref_k3": 0.001 * step} for step in range(20)]
    wild = [metrics | {"policy/grad_norm": 1e9 if step == 10 else 0.4} for step, metrics in enumerate(calm)]
    assert not any(chart.is_log for chart in curves([run_of(make, tmp_path, calm)]))
    charts = {chart.name: chart for chart in curves([run_of(make, tmp_path, wild, "wild")])}
    assert [name for name, chart in charts.items() if chart.is_log] == ["grad_norm"]
    norm = charts["grad_norm"]
    assert norm.caption.endswith(LOG_CAPTION)
    # A mean over five steps would be 2e8: here it is that of the logarithms.
    assert norm.lines[0].smooth[10] == pytest.approx((0.4**4 * 1e9) ** 0.2)
    assert norm.lines[0].y[10] == 1e9


def test_zero_has_no_logarithm_and_is_left_out_of_the_mean() -> None:
    assert smooth_logs([0.0, 1.0, 100.0]) == pytest.approx((10.0, 10.0, 10.0))
    assert math.isnan(smooth_logs([0.0])[0])


def test_unknown_values_are_null_in_the_page() -> None:
    line = Line(0, "loss", (1.0, 2.0), (math.nan, 0.123456789))
    assert Chart("loss", "Loss", "", "", (line,)).to_json()["lines"] == [
        {"run": 0, "name": "loss", "x": [1, 2], "y": [None, 0.12346]}
    ]


def test_csv_has_every_point_exactly(make: Any, tmp_path: Path) -> None:
    run = run_of(make, tmp_path, [{"reward/mean": 1 / 3}, {"reward/mean": math.nan}], name="=run")
    (chart,) = curves([run])
    rows = list(csv.DictReader(io.StringIO(chart_csv(chart, [run]))))
    assert [(row["run"], row["stage"], row["line"], row["step"]) for row in rows] == [
        ("'=run", "grpo", "reward", "1.0"),
        ("'=run", "grpo", "reward", "2.0"),
    ]
    assert float(rows[0]["value"]) == 1 / 3
    assert rows[1]["value"] == ""


def test_plots_are_the_same_bytes_each_time(make: Any, tmp_path: Path) -> None:
    metrics = [{"reward/mean": 0.1 * n, "time/sample_s": 1.0, "time/update_s": 2.0} for n in range(5)]
    evals = [(make.evaluation(0, 0.1, 0.0, 0.2), []), (make.evaluation(4, 0.5, 0.4, 0.6), [])]
    run = run_of(make, tmp_path, metrics, evals=evals, name="$run_1")
    charts = curves([run])
    paths = write_plots(charts, [run], tmp_path / "one")
    again = write_plots(charts, [run], tmp_path / "two")
    names = {f"{chart.name}.{ending}" for chart in charts for ending in ("png", "svg", "csv")}
    assert {path.name for path in paths} == names >= {"pass_at_1.png", "time.svg"}
    for first, second in zip(paths, again, strict=True):
        assert first.read_bytes() == second.read_bytes()
        assert len(first.read_bytes()) > 50
