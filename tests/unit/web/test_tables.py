"""Tables in the dashboard's modules match Python: metrics of the catalogue, parameters of the interface."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import pytest

from groupwise.runs.catalogue import CHARTS, METRICS
from groupwise.web.bundle import ASSETS
from groupwise.web.dashboard.group_pages import FILTERS

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="no node here")


def exported(module: str, name: str) -> Any:
    script = f'import {{ {name} }} from "{(ASSETS / module).as_uri()}"; console.log(JSON.stringify({name}));'
    command = [str(NODE), "--input-type=module", "--no-warnings", "-e", script]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)


def test_every_phase_that_is_drawn_is_timed() -> None:
    phases = {name for name, _ in exported("panels.js", "PHASES")}
    assert {f"time/{name}_s" for name in phases - {"other"}} <= set(METRICS)
    (stack,) = (chart for chart in CHARTS if chart.kind == "stack")
    assert set(stack.metrics.values()) <= phases


def test_filters_are_parameters_of_the_interface() -> None:
    assert exported("address.js", "FILTERS") == [*FILTERS, "sort"]
