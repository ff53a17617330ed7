"""The JSON interface of `groupwise watch`: an answer for each path and its parameters. No sockets here.

Contract: every answer is one JSON object, ASCII, without NaN (null instead). Status 200, 400 (invalid parameter), 404
(unknown run, group or address) or 500 (unreadable run). An error is `{"error": TEXT, "parameter": NAME or null}`.
Unknown parameters are refused. Texts of models, data sets and recipes are passed on unchanged: the page makes them
inert. An id is looked up in the table of runs; nothing that a client sends becomes a path. An empty value counts as
missing.

GET /api/catalogue            metrics and charts as declared in groupwise.runs.catalogue
GET /api/runs                 the runs (`state.describe`), the most recently written first; also looks for new runs
GET /api/runs/ID/metrics      the lines of metrics.jsonl after `cursor` (`tail.News`); also /evals and /events
GET /api/runs/ID/findings     the doctor's findings and vital signs (`state.examine_run`)
GET /api/runs/ID/recipe       recipe.toml and run.json; with `against=ID` the keys in which the two recipes differ
GET /api/runs/ID/groups       a page of groups that match the filters (`group_pages.FILTERS`, `group_pages.list_groups`)
GET /api/runs/ID/group        the group at `kind`, `step` and `index`, with its tokens (`group_pages.one_group`)

Lines come with the next cursor. `is_reset`: discard all earlier lines, because there was no cursor, or the file was
rewritten (a resumed run rewinds), shrank or disappeared. `has_more`: call again at once. A damaged line is reported
once, in `warnings`, and left out.

A long search for groups ends early with `is_complete: false`: newest steps first; call again for the rest (hits are
remembered). The same holds while the index grows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from groupwise.base.json_values import plain
from groupwise.base.outside import file_text
from groupwise.runs import METRICS, RunReadError, layout
from groupwise.runs.catalogue import CHARTS
from groupwise.runs.records import eval_from_json, eval_to_json, event_from_json, step_from_json, step_to_json
from groupwise.web.dashboard.group_pages import list_groups, one_group
from groupwise.web.dashboard.library import Library, WatchedRun
from groupwise.web.dashboard.parameters import NotServed, ParameterError, Parameters, parse_parameters
from groupwise.web.dashboard.recipes import difference, read_info, read_recipe
from groupwise.web.dashboard.tail import parse_cursor, read_since

Endpoint = Callable[[Library, WatchedRun, Parameters], dict[str, Any]]

_OF_A_RUN = re.compile(r"/api/runs/([0-9a-f]{12})/([a-z]+)")


@dataclass(frozen=True, slots=True)
class Response:
    status: HTTPStatus
    body: bytes


def answer(library: Library, path: str, query: str) -> Response:
    """Answer GET of `path` with `query`, both as the client sent them."""
    parameter = None
    try:
        with library.reading():
            return Response(HTTPStatus.OK, encode(_route(library, path, parse_parameters(query))))
    except ParameterError as error:
        status, message, parameter = HTTPStatus.BAD_REQUEST, str(error), error.parameter
    except NotServed as error:
        status, message = HTTPStatus.NOT_FOUND, str(error)
    except (RunReadError, OSError) as error:
        status, message = HTTPStatus.INTERNAL_SERVER_ERROR, str(error)
    return Response(status, encode({"error": message, "parameter": parameter}))


def encode(value: Mapping[str, Any]) -> bytes:
    """Return strict JSON in ASCII: whatever a file contained, a browser can read the answer."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(plain(value), allow_nan=False, separators=(",", ":"))
    return text.encode("ascii")


def _route(library: Library, path: str, parameters: Parameters) -> dict[str, Any]:
    if path == "/api/catalogue":
        parameters.allow()
        return {
            "metrics": {
                m.name: {"meaning": m.meaning, "unit": m.unit, "is_family": m.is_family} for m in METRICS.values()
            },
            "charts": [dataclasses.asdict(chart) for chart in CHARTS if "dashboard" in chart.shown_in],
        }
    if path == "/api/runs":
        parameters.allow()
        return _runs(library)
    match = _OF_A_RUN.fullmatch(path)
    if match is None or match[2] not in _ENDPOINTS:
        raise NotServed("unknown address; groupwise.web.dashboard.routes lists all addresses")
    run = library.get(match[1])
    if run is None:
        raise NotServed(f"no run has the id {match[1]}; /api/runs lists all runs")
    return _ENDPOINTS[match[2]](library, run, parameters)


def _runs(library: Library) -> dict[str, Any]:
    runs, warnings = library.look()
    described = [run.describe() | {"index": dataclasses.asdict(run.index.progress)} for run in runs]
    described.sort(key=lambda run: (run["last_write_s"] is None, run["last_write_s"], run["name"]))
    return {"runs": described, "warnings": list(warnings)}


def _news_of(name: str, make: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Endpoint:
    def read(_: Library, run: WatchedRun, parameters: Parameters) -> dict[str, Any]:
        parameters.allow("cursor")
        text = parameters.text("cursor")
        news = read_since(run.path / name, parse_cursor(text) if text else None, make)
        return news._asdict() | {"cursor": str(news.cursor)}

    return read


def _findings(_: Library, run: WatchedRun, parameters: Parameters) -> dict[str, Any]:
    parameters.allow()
    return run.findings.get()


def _recipe(library: Library, run: WatchedRun, parameters: Parameters) -> dict[str, Any]:
    parameters.allow("against")
    info, text = read_info(run.path), ""
    with contextlib.suppress(OSError):
        text = file_text(run.path / layout.RECIPE, errors="replace")
    found = {**_identity(run, info), "text": text, "info": info, "against": None}
    against = parameters.text("against")
    if not against:
        return found
    other = library.get(against)
    if other is None:
        raise ParameterError("against", f"no run has the id {against[:60]!r}; /api/runs lists all runs")
    theirs = _identity(other, read_info(other.path))
    is_known = found["fingerprint"] is not None and theirs["fingerprint"] is not None
    return found | {
        "against": theirs,
        "has_same_fingerprint": found["fingerprint"] == theirs["fingerprint"] if is_known else None,
        "difference": difference(read_recipe(run.path), read_recipe(other.path)),
    }


def _identity(run: WatchedRun, info: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": run.id, "name": run.name, "fingerprint": info.get("fingerprint"), "verifier": info.get("verifier")}


_ENDPOINTS: Mapping[str, Endpoint] = {
    "metrics": _news_of(layout.METRICS, lambda table: step_to_json(step_from_json(table))),
    "evals": _news_of(layout.EVALS, lambda table: eval_to_json(eval_from_json(table))),
    "events": _news_of(layout.EVENTS, event_from_json),
    "findings": _findings,
    "recipe": _recipe,
    "groups": list_groups,
    "group": one_group,
}
