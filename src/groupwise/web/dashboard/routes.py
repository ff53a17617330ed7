"""The JSON interface of `groupwise watch`: an answer for each path and its parameters. No sockets here.

Contract: every answer is one JSON object, ASCII, without NaN (null instead). Status 200, 400 (invalid parameter), 404
(unknown run, group or address) or 500 (unreadable run). An error is `{"error": TEXT, "parameter": NAME or null}`.
Unknown parameters are refused. Texts of models, data sets and recipes are passed on unchanged: the page makes them
inert. An id is looked up in the table of runs; nothing that a client sends becomes a path. An empty value counts as
missing.

GET /api/catalogue
    {"metrics": {NAME: {"meaning", "unit", "is_family"}}, "charts": [CHART …]}          in display order
    CHART = {"name", "title", "metrics": {NAME: NAME OF ITS LINE}, "kind": "line" | "points" | "stack",
             "share_of": NAME or "", "may_be_log": BOOL, "unit", "caption": TEXT}

GET /api/runs                                                       also looks for new runs
    {"runs": [RUN …], "warnings": [TEXT …]}                         most recently written run first
    RUN = {"id": 12 hex digits, "name", "path",
           "task": TEXT or null, "model": TEXT or null, "fingerprint": TEXT or null,
           "stages": [{"name", "algorithm", "steps"} …],            as planned by the recipe
           "step": newest step or 0, "stage": its stage or null, "planned_steps": COUNT or null,
           "state": "running" | "finished" | "stopped" | "failed", "reason": TEXT or "",
           "best": EVAL or null, "last_eval": EVAL or null,         EVAL = {"step", "pass_at_1", "low", "high"}
           "reward": of the newest step that has one, or null,
           "last_write_s": seconds since a file of the run was written, or null,
           "phase": {"step", "ago_s", "seconds": {"sample": S, "score": S, … "step": S}} or null: the newest step's
                    metrics `time/NAME_s`, and how long ago it was written,
           "step_s": usual seconds from step to step, or null, "left_s": seconds to the planned end, or null,
           "index": INDEX}
    INDEX = {"is_begun", "is_complete", "share": 0 to 1, "num_groups", "num_rollouts"}; started by the first request
            for the run's groups

GET /api/runs/ID/metrics?cursor=C         also /evals and /events. Without a cursor: from the beginning
    {"cursor": TEXT for the next call, "is_reset": BOOL, "has_more": BOOL, "lines": [OBJECT …], "warnings": [TEXT …]}
    A line of metrics: {"step", "stage", "stage_step", "metrics": {NAME: NUMBER or null}}; of evals: the fields of
    groupwise.types.EvalRecord; of events: {"time": ISO text, "kind", …}.
    `is_reset`: discard all earlier lines, because the file was rewritten (a resumed run rewinds), shrank or
    disappeared; `lines` begin with its first line. Also true without a cursor. `has_more`: call again at once. A
    damaged line is reported once, in `warnings`, and left out.

GET /api/runs/ID/findings
    {"as_of_step": STEP, "findings": [FINDING …], "clean_bill": TEXT, "stages": [STAGE …], "error": TEXT or null}
    FINDING = {"disease", "title", "severity": "sick" | "watch", "stage", "first_step", "last_step", "seen", "means",
               "change": {"advice", "key", "value"}, "say_change": TEXT, "figures": {NAME: NUMBER or null}}
    STAGE = {"name", "num_steps", "first_step", "last_step", "vital_signs": [TEXT …], "is_loss_zero": BOOL or null,
             "has_gradient": BOOL}
    Problems ("sick") come before warnings. `vital_signs` answer "the loss is 0, is it training?"; [] and null for a
    stage without rewards. `clean_bill` is the sentence for a run without findings. `error` says why a run cannot be
    examined.

GET /api/runs/ID/recipe?against=ID
    {"id", "name", "text", "fingerprint", "verifier", "info": OBJECT of run.json, "against": null}
    With `against`: {"against": {"id", "name", "fingerprint", "verifier"}, "has_same_fingerprint": BOOL or null,
    "difference": {KEY: [VALUE here, VALUE there] …}}; null: the key is not set. Infinity is the text "inf".

GET /api/runs/ID/groups?…
    kind      train (default) | eval
    q         text in a message of the problem, its answer, its id or a completion; case is ignored
    problem   exact id of a problem
    verdict   correct | wrong | unparsed | error | timed_out, of any rollout; may be repeated: any of them
    finish    stop | length | aborted: like verdict
    signal    yes | no
    stage     exact name: like verdict
    first_step, last_step         inclusive
    min_reward, max_reward        bounds of the group's mean reward, inclusive
    sort      newest (default) | oldest | spread (widest first) | highest | lowest (mean reward)
    offset    0        limit   50, at most 500
    {"total": matching groups, "total_rollouts": their rollouts, "offset", "groups": [LINE …],
     "is_complete": BOOL, "searched_share": 0 to 1, "index": INDEX, "stages": [NAME …], "token_steps": [STEP …],
     "warnings": [TEXT …]}
    LINE = {"kind", "step", "index", "stage", "problem_id", "prompt": 200 characters of the last message, "answer",
            "num_rollouts", "rewards": [NUMBER or null …], "verdicts": [TEXT …], "finishes": [TEXT …],
            "num_tokens": [COUNT …], "has_signal", "mean_reward": NUMBER or null, "spread": NUMBER or null,
            "has_tokens": BOOL, "match": MATCH or null}
    MATCH = {"where": "completion" | "prompt" | "answer" | "problem_id", "rollout": NUMBER or null,
             "before", "text", "after"}: the first match of `q`; null without `q`
    Mean and spread leave out rollouts whose verdict is error or timed_out; null if none is left.
    A long search ends early with `is_complete: false`: newest steps first; call again for the rest (hits are
    remembered). The same holds while the index grows.

GET /api/runs/ID/group?kind=K&step=S&index=I
    {"kind", "step", "index", "stage", "problem": {"id", "messages": [{"role", "content"} …], "answer", "meta",
     "answer_in_words"}, "num_prompt_tokens", "has_signal", "mean_reward", "spread", "rollouts": [ROLLOUT …],
     "has_tokens": BOOL, "warnings": [TEXT …]}
    ROLLOUT = {"text", "finish", "policy_version", "num_tokens", "logprob_mean": NUMBER or null, "reward", "advantage",
               "score": {"reward", "verdict", "parts", "verifier", "detail", "process"}, "reward_terms": [TERM …],
               "tokens": TOKENS or null}
    TERM = {"name", "value": NUMBER or null, "factor": NUMBER, "amount": NUMBER}: the reward is the sum of the amounts;
           amount = value × factor, or the amount alone (value null)
    TOKENS = {"pieces": [TEXT …], "logprob": […], "ratio": […], "kl": […] or null, "entropy": […]}, as in RUN/tokens;
    null for a step without recorded tokens, and for a rollout whose verifier failed.
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
from groupwise.runs import METRICS, RunReadError, layout
from groupwise.runs.catalogue import CHARTS
from groupwise.web.dashboard.group_pages import list_groups, one_group
from groupwise.web.dashboard.library import Library, WatchedRun
from groupwise.web.dashboard.parameters import NotServed, ParameterError, Parameters, parse_parameters
from groupwise.web.dashboard.recipes import difference, read_info, read_recipe
from groupwise.web.dashboard.tail import parse_cursor, read_since

_OF_A_RUN = re.compile(r"/api/runs/([0-9a-f]{12})/([a-z]+)")


@dataclass(frozen=True, slots=True)
class Response:
    status: HTTPStatus
    body: bytes


def answer(library: Library, path: str, query: str) -> Response:
    """Answer GET of `path` with `query`, both as the client sent them."""
    parameter = None
    try:
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


def _news_of(name: str) -> Callable[[Library, WatchedRun, Parameters], dict[str, Any]]:
    def read(_: Library, run: WatchedRun, parameters: Parameters) -> dict[str, Any]:
        parameters.allow("cursor")
        text = parameters.text("cursor")
        news = read_since(run.path / name, parse_cursor(text) if text else None)
        return news._asdict() | {"cursor": str(news.cursor)}

    return read


def _findings(_: Library, run: WatchedRun, parameters: Parameters) -> dict[str, Any]:
    parameters.allow()
    return run.findings.answer()


def _recipe(library: Library, run: WatchedRun, parameters: Parameters) -> dict[str, Any]:
    parameters.allow("against")
    info, text = read_info(run.path), ""
    with contextlib.suppress(OSError):
        text = (run.path / layout.RECIPE).read_text(encoding="utf-8", errors="replace")
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


_ENDPOINTS: Mapping[str, Callable[[Library, WatchedRun, Parameters], dict[str, Any]]] = {
    "metrics": _news_of(layout.METRICS),
    "evals": _news_of(layout.EVALS),
    "events": _news_of(layout.EVENTS),
    "findings": _findings,
    "recipe": _recipe,
    "groups": list_groups,
    "group": one_group,
}
