"""The backend for a vLLM server, against a server in this process that speaks the same JSON, well or badly."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from groupwise.config import EngineConfig
from groupwise.engines.factory import make_engine
from groupwise.engines.vllm.vllm_engine import Draw, Drawn, VllmError, logprobs_mode
from groupwise.engines.vllm.vllm_server import Server
from groupwise.training import pipeline
from groupwise.types import SamplingParams
from tests.factories import GRPO, tiny_recipe
from tests.unit.engines.test_vllm import make_policy, request

SETTINGS = {"max_tokens": 3, "logprobs": 0, "temperature": 1.0}
DRAWS = [Draw((10 + number,), number) for number in range(7)]


class FakeVllm:
    """What of vLLM's server is used. It draws its prompt's first token, then its seed, then the stop token 9."""

    def __init__(self) -> None:
        self.config: Any = {"model_config": {"logprobs_mode": "processed_logprobs", "max_model_len": 100}}
        self.version = "default"
        self.weights: dict[str, torch.Tensor] = {}
        self.calls: list[str] = []
        self.resets = True
        self.num_running = self.most_running = self.num_dropped = 0
        self.seconds = 0.0
        """How long a completion takes; with the seed 0 it takes none."""
        self.change: Callable[[dict[str, Any]], Any] = lambda answer: answer
        self.replies: dict[str, tuple[int, bytes]] = {}
        self.lock = threading.Lock()

    def answer(self, path: str, body: Any) -> Any:
        if path == "/server_info":
            return {"vllm_config": self.config}
        if path == "/collective_rpc":
            assert body["method"] == "reload_weights"
            self.weights = load_file(Path(body["kwargs"]["weights_path"]) / "model.safetensors")
            return {"results": [None]}
        if path == "/reset_prefix_cache":
            return {"success": self.resets}
        if path == "/update_weight_version":
            self.version = body["new_version"]
            return {"success": True}
        if path == "/inference/v1/generate":
            tokens = [body["token_ids"][0], body["sampling_params"]["seed"], 9]
            content = [{"token_id": token, "logprob": -0.5, "rank": 1, "top_logprobs": []} for token in tokens]
            span = {"version": self.version, "start": 0, "end": 3}
            choice = {"token_ids": tokens, "logprobs": {"content": content}, "finish_reason": "stop"}
            return self.change({"choices": [choice | {"index": 0, "weight_versions": [span]}]})
        return {"status": "ok"}

    def handle(self, path: str, body: Any, peer: socket.socket) -> tuple[int, bytes]:
        with self.lock:
            self.calls.append(path)
            self.num_running += 1
            self.most_running = max(self.most_running, self.num_running)
        # A client that goes away makes its socket readable.
        is_slow = path == "/inference/v1/generate" and body["sampling_params"]["seed"] > 0
        if is_slow and self.seconds and select.select([peer], [], [], self.seconds)[0]:
            self.num_dropped += 1
        with self.lock:
            self.num_running -= 1
        return self.replies.get(path) or (200, json.dumps(self.answer(path, body)).encode())


@pytest.fixture
def fake() -> FakeVllm:
    return FakeVllm()


@pytest.fixture
def url(fake: FakeVllm) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "null")
            status, data = fake.handle(self.path.partition("?")[0], body, self.connection)
            try:
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                pass  # who asked has gone

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None: ...

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None: ...

    server = Quiet(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def connect(
    url: str, folder: Path | str = "", timeout_s: float = 20.0, at_once: int = 3, *, is_truncated: bool = False
) -> Server:
    return Server(
        EngineConfig(name="vllm", url=url, weights_folder=str(folder), max_batch_rollouts=at_once, timeout_s=timeout_s),
        logprobs_mode(is_truncated),
    )


def test_weights_go_over_the_folder_and_completions_over_http(fake: FakeVllm, url: str, tmp_path: Path) -> None:
    server = connect(url + "/", tmp_path / "shared")
    assert server.context_tokens == 100
    tied = torch.arange(6.0).reshape(2, 3)
    server.publish({"a": tied, "b": tied, "t": tied.T})
    order = ["/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume"]
    assert fake.calls == ["/server_info", "/resume", "/inference/v1/generate", *order]
    assert torch.equal(fake.weights["a"], tied)
    assert torch.equal(fake.weights["b"], tied)
    assert torch.equal(fake.weights["t"], tied.T)
    drawn = dict(server.draw(DRAWS, SETTINGS))
    assert drawn == {n: Drawn((10 + n, n, 9), (-0.5, -0.5, -0.5), "stop") for n in range(7)}
    server.publish({"a": tied + 1})
    assert torch.equal(fake.weights["a"], tied + 1)
    assert set(dict(server.draw(DRAWS, SETTINGS))) == set(range(7))
    assert list((tmp_path / "shared").iterdir()) == []
    server.close()


def test_as_many_requests_at_once_as_were_allowed(fake: FakeVllm, url: str) -> None:
    server = connect(url)
    server.publish({"a": torch.zeros(1)})
    fake.seconds = 0.1
    fake.most_running = 0
    assert len(dict(server.draw(DRAWS, SETTINGS))) == 7
    assert fake.most_running == 3


def test_a_recipe_reaches_it(fake: FakeVllm, url: str) -> None:
    policy = make_policy(lora={"rank": 2})
    engine = make_engine(EngineConfig(name="vllm", url=url), policy)
    groups = dict(engine.generate([request("x", 65, 66)], SamplingParams(3), 0))
    assert [rollout.token_ids for rollout in groups[0].rollouts] == [(120, 65, 9), (120, 66, 9)]
    assert not any("lora" in name or "base_layer" in name for name in fake.weights)
    assert "model.layers.0.self_attn.q_proj.weight" in fake.weights


def test_nothing_goes_on_for_who_has_left(fake: FakeVllm, url: str) -> None:
    server = connect(url)
    server.publish({"a": torch.zeros(1)})
    fake.seconds = 30.0
    drawing = server.draw(DRAWS, SETTINGS)
    assert next(drawing)[0] == 0
    wait_for(lambda: fake.num_running == 3)
    start = time.monotonic()
    drawing.close()  # type: ignore[attr-defined]
    wait_for(lambda: fake.num_running == 0)
    assert time.monotonic() - start < 10
    assert fake.num_dropped == 3
    assert fake.calls.count("/inference/v1/generate") == 1 + 4, "one to see whether it works, and four"


def wait_for(is_so: Callable[[], bool]) -> None:
    for _ in range(1000):
        if is_so():
            return
        time.sleep(0.02)
    raise AssertionError("it never was")


@pytest.mark.parametrize(
    ("path", "reply", "message"),
    [
        (
            "/server_info",
            (404, b'{"detail":"Not Found"}'),
            r"HTTP 404.*developer mode.*\n  VLLM_SERVER_DEV_MODE=1 vllm serve",
        ),
        ("/server_info", (200, b"<html>"), "not JSON: <html>"),
        ("/server_info", (200, b'{"vllm_config": "text"}'), "not a response of vLLM"),
        ("/server_info", (200, b"[]"), "not a response of vLLM"),
        (
            "/inference/v1/generate",
            (403, b'{"error": {"message": "Scale-out endpoints are disabled."}}'),
            r"HTTP 403: Scale-out endpoints are disabled.; start it with:\n.*--enable-scale-out",
        ),
        ("/inference/v1/generate", (500, b"EngineCore died"), "HTTP 500: EngineCore died; see its log"),
    ],
)
def test_a_server_that_cannot_is_refused_at_once(
    fake: FakeVllm, url: str, path: str, reply: tuple[int, bytes], message: str
) -> None:
    fake.replies[path] = reply
    with pytest.raises(VllmError, match=message):
        connect(url)


@pytest.mark.parametrize("is_truncated", [False, True])
def test_logprobs_of_another_distribution_are_refused(fake: FakeVllm, url: str, is_truncated: bool) -> None:
    right, wrong = logprobs_mode(is_truncated), logprobs_mode(not is_truncated)
    fake.config["model_config"]["logprobs_mode"] = right
    connect(url, is_truncated=is_truncated)
    fake.config["model_config"]["logprobs_mode"] = wrong
    with pytest.raises(VllmError, match=rf"its logprobs are {wrong}.*\n.*--logprobs-mode {right}"):
        connect(url, is_truncated=is_truncated)


@pytest.mark.parametrize("keys", [{}, {"top_k": 5}])
def test_a_run_asks_for_the_logprobs_that_its_sampling_needs(
    fake: FakeVllm, url: str, keys: dict[str, int], tmp_path: Path
) -> None:
    right, wrong = logprobs_mode(bool(keys)), logprobs_mode(not keys)
    fake.config["model_config"]["logprobs_mode"] = wrong
    stage = GRPO | {"sampling": {"max_new_tokens": 6} | keys}
    recipe = tiny_recipe(engine={"name": "vllm", "url": url}, stages=[stage])
    with pytest.raises(VllmError, match=f"its logprobs are {wrong}, but this recipe's sampling needs {right}"):
        pipeline.train(recipe, tmp_path / "run")


def test_nobody_there() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(
        VllmError, match=rf"127.0.0.1:{port}/server_info: no response.*refused.*engine.url.*\n.*vllm serve"
    ):
        connect(f"http://127.0.0.1:{port}")


def test_a_server_that_does_not_answer_in_time(fake: FakeVllm, url: str) -> None:
    server = connect(url, timeout_s=0.5)
    server.publish({"a": torch.zeros(1)})
    fake.seconds = 20.0
    start = time.monotonic()
    with pytest.raises(VllmError, match=r"/inference/v1/generate: no response within engine.timeout_s = 0.5"):
        list(server.draw(DRAWS, SETTINGS))
    assert time.monotonic() - start < 10


def test_a_server_that_hangs_up(url: str, fake: FakeVllm) -> None:
    server = connect(url)
    server.publish({"a": torch.zeros(1)})

    def hang_up(answer: dict[str, Any]) -> Any:
        raise OSError

    fake.change = hang_up
    with pytest.raises(VllmError, match="no response"):
        list(server.draw(DRAWS[:1], SETTINGS))


@pytest.mark.parametrize(
    "path", ["/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume"]
)
def test_weights_that_were_not_taken_are_not_drawn_from(fake: FakeVllm, url: str, tmp_path: Path, path: str) -> None:
    server = connect(url, tmp_path)
    server.publish({"a": torch.zeros(1)})
    fake.replies[path] = (500, b'{"error": {"message": "no such file"}}')
    with pytest.raises(
        VllmError, match=rf"{path}: HTTP 500: no such file; can the server read .*engine.weights_folder"
    ):
        server.publish({"a": torch.ones(1)})
    assert list(tmp_path.iterdir()) == []


def test_a_prefix_cache_that_stays_is_an_error(fake: FakeVllm, url: str) -> None:
    fake.resets = False
    with pytest.raises(VllmError, match="did not reset its prefix cache"):
        connect(url).publish({"a": torch.zeros(1)})


def test_a_server_that_was_restarted_is_noticed(fake: FakeVllm, url: str) -> None:
    server = connect(url)
    server.publish({"a": torch.zeros(1)})
    fake.version = "default"
    with pytest.raises(VllmError, match=r"sampled with weights default, not with .*-1, which this run published"):
        list(server.draw(DRAWS, SETTINGS))


def test_two_runs_on_one_server_are_noticed(url: str, fake: FakeVllm) -> None:
    first, second = connect(url), connect(url)
    first.publish({"a": torch.zeros(1)})
    second.publish({"a": torch.ones(1)})
    with pytest.raises(VllmError, match="another run uses it"):
        list(first.draw(DRAWS, SETTINGS))


def _without(key: str) -> Callable[[dict[str, Any]], Any]:
    def change(answer: dict[str, Any]) -> Any:
        del answer["choices"][0][key]
        return answer

    return change


def _with(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda answer: {"choices": [answer["choices"][0] | changes]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda answer: [], "not a response of vLLM 0.32"),
        (lambda answer: {"choices": []}, "not a response of vLLM 0.32"),
        (lambda answer: {"choices": answer["choices"] * 2}, "not a response of vLLM 0.32"),
        (_without("token_ids"), "KeyError.*token_ids"),
        (_without("logprobs"), "logprobs"),
        (_without("weight_versions"), "weight_versions"),
        (_without("finish_reason"), "finish_reason"),
        (_with(logprobs=None), "not a response of vLLM 0.32"),
        (_with(token_ids=None), "not a response of vLLM 0.32"),
        (_with(token_ids=["x"]), "not a response of vLLM 0.32"),
        (_with(token_ids=[1, 2]), "logprobs belong to other tokens"),
        (_with(token_ids=[1, 2, 3]), "logprobs belong to other tokens"),
        (_with(weight_versions=[]), "sampled with weights , not with"),
    ],
)
def test_answers_that_are_none(fake: FakeVllm, url: str, change: Callable[[Any], Any], message: str) -> None:
    server = connect(url)
    server.publish({"a": torch.zeros(1)})
    fake.change = change
    with pytest.raises(VllmError, match=message):
        list(server.draw(DRAWS, SETTINGS))


def test_http_500_for_a_completion(fake: FakeVllm, url: str) -> None:
    server = connect(url)
    server.publish({"a": torch.zeros(1)})
    fake.replies["/inference/v1/generate"] = (500, b'{"error": {"message": "EngineCore died"}}')
    with pytest.raises(VllmError, match="HTTP 500: EngineCore died"):
        list(server.draw(DRAWS, SETTINGS))


def test_an_aborted_completion_is_told_as_such(fake: FakeVllm, url: str) -> None:
    server = connect(url)
    server.publish({"a": torch.zeros(1)})
    fake.change = _with(finish_reason="abort", token_ids=[], weight_versions=None)
    assert dict(server.draw(DRAWS[:1], SETTINGS)) == {0: Drawn((), (), "abort")}
