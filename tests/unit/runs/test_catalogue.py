from __future__ import annotations

import re

import pytest

from groupwise.runs.catalogue import _DECLARED, CHARTS, METRICS, UndeclaredMetric, metric

UNIT_SUFFIX = {"s": "_s", "bytes": "_bytes", "nats": "", "tokens/s": "_per_s"}


def test_each_metric_is_declared_once_with_a_name_and_a_meaning() -> None:
    assert len(METRICS) == len(_DECLARED)
    for name, declared in METRICS.items():
        assert re.fullmatch(r"[a-z]+(/[a-z0-9_]+)+/?", name), name
        assert declared.meaning[0].isupper(), name
        assert "\n" not in declared.meaning, name
        assert not declared.meaning.endswith("."), name
        assert name.rstrip("/").endswith(UNIT_SUFFIX.get(declared.unit, "")), f"{name} is in {declared.unit}"


def test_every_chart_is_of_declared_metrics_of_one_unit_and_shown_somewhere() -> None:
    assert len({chart.name for chart in CHARTS}) == len(CHARTS)
    for chart in CHARTS:
        assert chart.shown_in, chart.name
        assert chart.title, chart.name
        assert {METRICS[name].unit for name in chart.metrics} == {"count" if chart.share_of else chart.unit}, chart.name
        assert not chart.share_of or chart.share_of in METRICS
    assert [chart.name for chart in CHARTS if "sweep" in chart.shown_in][:2] == ["pass_at_1", "reward"]


def test_a_name_finds_its_own_declaration_and_a_part_that_of_its_family() -> None:
    assert metric("kl/ref_k3").name == "kl/ref_k3"
    assert metric("reward/part/format").name == "reward/part/"


@pytest.mark.parametrize("name", ["reward/maen", "reward/part/", "reward/part", "nonsense", ""])
def test_an_undeclared_name_is_refused(name: str) -> None:
    with pytest.raises(UndeclaredMetric, match="is not declared"):
        metric(name)


def test_the_message_offers_the_nearest_name() -> None:
    with pytest.raises(UndeclaredMetric) as caught:
        metric("reward/maen")
    assert str(caught.value) == "metric 'reward/maen' is not declared; did you mean 'reward/mean'?"
