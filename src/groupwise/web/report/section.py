"""What a section of a report is. The sections themselves are in `sections/`, by name in `report.SECTIONS`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from groupwise.web.report.charts import Chart
from groupwise.web.report.inputs import Sources
from groupwise.web.report.kept_texts import Texts


@dataclass(frozen=True, slots=True)
class Material:
    """What sections are made from."""

    sources: Sources
    texts: Texts = field(default_factory=Texts)
    """Where a section puts a completion; it keeps the number."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a section found. `data` goes into the JSON twin, and `html` is made from it and nothing else."""

    data: Mapping[str, Any]
    html: str
    charts: tuple[Chart, ...] = ()
    """Also for plots and CSV files; the page's script draws them where `markup.figure` left room."""


class Section(Protocol):
    title: str

    def render(self, material: Material) -> Content | None:
        """None where there is nothing to show: the section is then left out."""
        ...
