"""A whole HTTP server in this process, over a simulated engine."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx
import pytest
import uvicorn

from corymb.serve.app import create_app
from corymb.serve.engine import Engine, ServedModel
from corymb.serve.http_protocol import LimitedHttpProtocol
from corymb.serve.metrics import Metrics
from corymb.serve.settings import HttpSettings
from tests.http.byte_tokenizer import EOS_IDS, VOCAB_SIZE, ByteTokenizer, ChatMl
from tests.http.simulator import Simulator


@dataclass
class Local:
    """A running server and what it is made of."""

    url: str
    client: httpx.Client
    engine: Engine
    simulator: Simulator
    metrics: Metrics
    app: object = None
    extra: dict = field(default_factory=dict)

    def post(self, path: str, **body) -> httpx.Response:
        return self.client.post(path, json=body)

    def wait_idle(self, timeout_s: float = 1.0) -> float:
        """Until nothing runs or waits; returns after how long."""
        begun_s = time.monotonic()
        while self.simulator.running or self.simulator.waiting:
            assert time.monotonic() - begun_s < timeout_s, "requests go on"
            time.sleep(0.005)
        return time.monotonic() - begun_s


@contextlib.contextmanager
def serving(model: str = "tape", *, context_length: int = 8192, headers=None, simulator=None, **settings):
    """Serves `model` on a free port in a thread."""
    simulator = simulator or Simulator(model)
    metrics = Metrics(model)
    info = ServedModel(
        names=(model, f"corymb/{model}"),
        path=f"corymb/{model}",
        context_length=context_length,
        vocab_size=VOCAB_SIZE,
        eos_ids=EOS_IDS,
        started_at=1.7e9,
        config={"page_size": 1},
    )
    engine = Engine(simulator, metrics, info, heartbeat_timeout_s=5.0)
    simulator.engine = engine
    engine.ready({"max_total_num_tokens": 65536, "page_size": 1})
    app = create_app(engine, ByteTokenizer(), ChatMl(), HttpSettings(**settings), metrics)
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener, running(app, listener):
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with httpx.Client(base_url=url, timeout=30, headers=headers) as client:
            yield Local(url, client, engine, simulator, metrics, app)


@contextlib.contextmanager
def running(app, listener: socket.socket) -> Iterator[None]:
    server = uvicorn.Server(
        uvicorn.Config(app, http=LimitedHttpProtocol, log_level="warning", lifespan="off", ws="none")
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    try:
        yield
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)


@pytest.fixture(scope="module")
def tape() -> Iterator[Local]:
    with serving("tape") as local:
        yield local


@pytest.fixture(scope="module")
def hashed() -> Iterator[Local]:
    with serving("hash") as local:
        yield local


@pytest.fixture(scope="module")
def uniform() -> Iterator[Local]:
    with serving("uniform") as local:
        yield local
