"""Servers under test: the HTTP application over a simulated engine, in this process."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

import httpx
import pytest
import uvicorn

from corymb.serve.app import create_app
from corymb.serve.chat import BYTE_ENDS, ChatTemplate
from corymb.serve.engine import Engine, ServedModel
from corymb.serve.http_protocol import LimitedHttpProtocol
from corymb.serve.metrics import Metrics
from corymb.serve.settings import HttpSettings
from tests.http.simulator import EOS_IDS, TOKENIZER, VOCAB_SIZE, Simulator

TEMPLATE = ChatTemplate(files("corymb.serve").joinpath("chatml.jinja").read_text(), BYTE_ENDS)


@dataclass
class Local:
    """A running server and what it is made of."""

    url: str
    client: httpx.Client
    engine: Engine
    simulator: Simulator
    app: object

    def on_loop(self, action) -> None:
        """Runs an action where the engine lives."""
        self.simulator.loop.call_soon_threadsafe(action)

    def wait_idle(self, timeout_s: float = 1.0) -> float:
        """Until nothing runs or waits; returns after how long."""
        begun_s = time.monotonic()
        while self.simulator.running or self.simulator.waiting:
            assert time.monotonic() - begun_s < timeout_s, "requests go on"
            time.sleep(0.005)
        return time.monotonic() - begun_s


@contextlib.contextmanager
def simulated(
    model: str = "tape",
    *,
    context_length: int = 1 << 17,
    hidden_size: int = 0,
    headers=None,
    simulator=None,
    **settings,
):
    """Serves `model` on a free port, in a thread."""
    simulator = simulator or Simulator(model)
    metrics = Metrics(model)
    info = ServedModel(
        names=(model, f"corymb/{model}"),
        path=f"corymb/{model}",
        tokenizer_path="tokens",
        context_length=context_length,
        vocab_size=VOCAB_SIZE,
        eos_ids=EOS_IDS,
        hidden_size=hidden_size,
        started_at=1.7e9,
        config={"page_size": 1},
    )
    engine = Engine(simulator, metrics, info, heartbeat_timeout_s=5.0)
    simulator.engine = engine
    engine.ready({"max_total_num_tokens": 65536, "page_size": 1})
    app = create_app(engine, TOKENIZER, TEMPLATE, HttpSettings(**settings), metrics)
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener, _running(app, listener):
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with httpx.Client(base_url=url, timeout=30, headers=headers) as client:
            yield Local(url, client, engine, simulator, app)


@contextlib.contextmanager
def _running(app, listener: socket.socket) -> Iterator[None]:
    config = uvicorn.Config(app, http=LimitedHttpProtocol, log_level="warning", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    try:
        yield
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)


# Most tests run twice: over the simulated engine, and against a whole server.

KINDS = ["simulated", pytest.param("whole", marks=pytest.mark.server)]


@pytest.fixture(scope="session")
def simulated_tape() -> Iterator[Local]:
    with simulated("tape") as server:
        yield server


@pytest.fixture(scope="session")
def simulated_hash() -> Iterator[Local]:
    with simulated("hash") as server:
        yield server


@pytest.fixture(scope="session")
def simulated_uniform() -> Iterator[Local]:
    with simulated("uniform") as server:
        yield server


@pytest.fixture(scope="session")
def whole_tape(serving):
    with serving("corymb/tape") as server:
        yield server


@pytest.fixture(scope="session")
def whole_hash(serving):
    with serving("corymb/hash") as server:
        yield server


@pytest.fixture(scope="session")
def whole_uniform(serving):
    with serving("corymb/uniform") as server:
        yield server


@pytest.fixture(params=KINDS)
def tape_server(request):
    return request.getfixturevalue(f"{request.param}_tape")


@pytest.fixture(params=KINDS)
def hash_server(request):
    return request.getfixturevalue(f"{request.param}_hash")


@pytest.fixture(params=KINDS)
def uniform_server(request):
    return request.getfixturevalue(f"{request.param}_uniform")
