"""vLLM as a server: token ids over HTTP, weights through a shared folder.

    publish:  safetensors into a new folder ─▶ pause ─▶ reload from there ─▶ forget the prefix cache ─▶ label ─▶ resume
    draw:     one HTTP request per rollout; each response has the label of the weights it was sampled with

The label is made here and is part of every completion, so a restarted server, or one that another run publishes to, is
detected. The server must belong to this run alone: publishing aborts everything else it does.
"""

from __future__ import annotations

import http.client
import itertools
import json
import shutil
import socket
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from safetensors.torch import save_file
from torch import Tensor

from groupwise.base.text_layout import shortened
from groupwise.config import EngineConfig
from groupwise.engines.vllm.vllm_engine import TESTED_VERSION, Draw, Drawn, VllmError

COMMAND = "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --enable-scale-out --logprobs-mode {} --generation-config vllm"
DEFAULT_TIMEOUT_S = 600.0
CONNECT_S = 10.0
"""Timeout for connecting; a response may take longer."""


class Server:
    def __init__(self, config: EngineConfig, logprobs_mode: str) -> None:
        """Check that the server is running and has the required features."""
        self._logprobs_mode = logprobs_mode
        self._http = _Http(config.url, config.timeout_s or DEFAULT_TIMEOUT_S, COMMAND.format(logprobs_mode))
        self._max_requests = config.max_batch_rollouts
        self.context_tokens = self._check()
        self._root = Path(config.weights_folder or tempfile.gettempdir())
        self._name = uuid.uuid4().hex[:12]
        self._versions = itertools.count(1)
        self._version = ""

    def _check(self) -> int:
        """Check the server and return the number of tokens of its context."""
        try:
            info = self._http.ask("GET", "/server_info?config_format=json")
        except _Refused as error:
            raise VllmError(
                f"{error}; it must be started in developer mode, which accepts weights:\n  {self._http.command}"
            ) from None
        try:
            model = info["vllm_config"]["model_config"]
            mode, context_tokens = model["logprobs_mode"], int(model["max_model_len"])
        except (KeyError, TypeError, ValueError) as error:
            raise VllmError(f"{self._http.url}/server_info: not a response of vLLM ({error!r})") from None
        if mode != self._logprobs_mode:
            raise VllmError(
                f"{self._http.url}: its logprobs are {mode}, but this recipe's sampling needs {self._logprobs_mode}; "
                f"start it with:\n  {self._http.command}"
            )
        try:
            self._http.ask("POST", "/resume")  # a run that was killed while publishing leaves it paused
            self._http.ask("POST", "/inference/v1/generate", _body(Draw((0,), 0), {"max_tokens": 1, "logprobs": 0}))
        except _Refused as error:
            is_closed = error.status in (http.client.FORBIDDEN, http.client.NOT_FOUND)
            fix = f"; start it with:\n  {self._http.command}" if is_closed else "; see its log"
            raise VllmError(f"{error}{fix}") from None
        return context_tokens

    def publish(self, tensors: Mapping[str, Tensor]) -> None:
        version = f"{self._name}-{next(self._versions)}"
        folder = self._root / f"groupwise-weights-{version}"
        folder.mkdir(parents=True)
        try:
            # A safetensors file cannot share memory between names, so a tied weight is copied.
            save_file(
                {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in tensors.items()},
                folder / "model.safetensors",
            )
            self._http.ask("POST", "/pause")
            arguments = {"method": "reload_weights", "kwargs": {"weights_path": str(folder.resolve())}}
            self._http.ask("POST", "/collective_rpc", arguments)
            answer = self._http.ask("POST", "/reset_prefix_cache")
            if not (isinstance(answer, dict) and answer.get("success") is True):
                raise VllmError(f"{self._http.url}: did not reset its prefix cache, which older weights computed")
            self._http.ask("POST", "/update_weight_version", {"new_version": version})
            self._http.ask("POST", "/resume")
        except _Refused as error:
            raise VllmError(
                f"{error}; can the server read {folder.resolve()}? Set engine.weights_folder to a shared folder"
            ) from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._version = version

    def draw(self, draws: Sequence[Draw], settings: Mapping[str, Any]) -> Iterator[tuple[int, Drawn]]:
        calls = _Calls()
        pool = ThreadPoolExecutor(min(self._max_requests, len(draws)))
        try:
            asked = {pool.submit(self._draw_one, draw, settings, calls): index for index, draw in enumerate(draws)}
            for answered in as_completed(asked):
                yield asked[answered], answered.result()
        finally:
            calls.close()
            pool.shutdown(cancel_futures=True)

    def _draw_one(self, draw: Draw, settings: Mapping[str, Any], calls: _Calls) -> Drawn:
        answer = self._http.ask("POST", "/inference/v1/generate", _body(draw, settings), calls)
        try:
            (choice,) = answer["choices"]
            finish = str(choice["finish_reason"])
            if finish not in ("stop", "length"):
                return Drawn((), (), finish)
            tokens = tuple(int(token) for token in choice["token_ids"])
            content = choice["logprobs"]["content"]
            logprobs = tuple(float(entry["logprob"]) for entry in content)
            versions = {str(span["version"]) for span in choice["weight_versions"]}
            is_aligned = tokens == tuple(int(entry["token_id"]) for entry in content)
        except (KeyError, TypeError, ValueError) as error:
            raise VllmError(f"{self._http.url}: not a response of vLLM {TESTED_VERSION} ({error!r})") from None
        if not is_aligned:
            raise VllmError(f"{self._http.url}: its logprobs belong to other tokens than it sampled")
        if versions != {self._version}:
            raise VllmError(
                f"{self._http.url}: sampled with weights {', '.join(sorted(versions))}, not with {self._version}, "
                "which this run published; it was restarted, or another run uses it. Resume with a separate server"
            )
        return Drawn(tokens, logprobs, finish)

    def close(self) -> None:
        """Do nothing: the server keeps running and holds nothing of this run."""


def _body(draw: Draw, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {"token_ids": list(draw.prompt_ids), "sampling_params": {**settings, "seed": draw.seed}}


class _Refused(VllmError):
    """The server responded with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Calls:
    """The connections that wait for a response. Closing them makes vLLM drop the work."""

    def __init__(self) -> None:
        self.is_closed = False
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()

    @contextmanager
    def counted(self, connection: http.client.HTTPConnection) -> Iterator[None]:
        held = connection.sock  # the connection drops it before the response is read
        with self._lock:
            if self.is_closed:
                raise VllmError("the call was cancelled")
            self._sockets.add(held)
        try:
            yield
        finally:
            with self._lock:
                self._sockets.discard(held)

    def close(self) -> None:
        with self._lock:
            self.is_closed = True
            for waiting in self._sockets:
                with suppress(OSError):  # it has just ended
                    waiting.shutdown(socket.SHUT_RDWR)


class _Http:
    """JSON over HTTP, with a connection per call."""

    def __init__(self, url: str, timeout_s: float, command: str) -> None:
        self.url = url.rstrip("/")
        self._parts = urlsplit(self.url)
        self._timeout_s = timeout_s
        self.command = command

    def ask(self, method: str, path: str, body: object = None, calls: _Calls | None = None) -> Any:
        """Return the JSON of the response; None if it is empty."""
        is_tls = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
        connect_s = min(CONNECT_S, self._timeout_s)
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=connect_s)
        where = f"{self.url}{path.partition('?')[0]}"
        try:
            connection.connect()
            connection.sock.settimeout(self._timeout_s)
            with (calls or _Calls()).counted(connection):
                headers = {"Content-Type": "application/json", "Connection": "close"}
                connection.request(method, self._parts.path + path, json.dumps(body) if body else None, headers)
                with connection.getresponse() as response:
                    data = response.read()
        except TimeoutError:
            raise VllmError(f"{where}: no response within engine.timeout_s = {self._timeout_s:g}") from None
        except (OSError, http.client.HTTPException) as error:
            raise VllmError(
                f"{where}: no response ({error or type(error).__name__}); engine.url must name a running server, "
                f"started with:\n  {self.command}"
            ) from error
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise _Refused(response.status, f"{where}: HTTP {response.status}: {_reason(data)}")
        try:
            return json.loads(data) if data else None
        except ValueError:
            raise VllmError(f"{where}: the response is not JSON: {_shown(data)}") from None


def _reason(data: bytes) -> str:
    """Return vLLM's error message, if there is one."""
    try:
        return str(json.loads(data)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return _shown(data)


def _shown(data: bytes) -> str:
    return shortened(data.decode(errors="replace"), 200)
