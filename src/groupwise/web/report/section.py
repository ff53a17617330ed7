"""The interface of a report section. The sections are in `sections/`, by name in `report.SECTIONS`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from groupwise.web.report.charts import Chart
from groupwise.web.report.inputs import Sources
from groupwise.web.report.kept_texts import Texts


@dataclass(frozen=True, slots=True)
class Material:
    """The input of sections."""

    sources: Sources
    texts: Texts = field(default_factory=Texts)
    """Long texts; a section keeps only their numbers."""


@dataclass(frozen=True, slots=True)
class Content:
    """A rendered section. `data` goes into the JSON file, and `html` is made only from it."""

    data: Mapping[str, Any]
    html: str
    charts: tuple[Chart, ...] = ()
    """Charts for the page, plots and CSV files; the page's script draws them in the places made by `markup.figure`."""


class Section(Protocol):
    title: str

    def render(self, material: Material) -> Content | None:
        """Return the section, or None to leave it out because there is nothing to show."""
        ...
