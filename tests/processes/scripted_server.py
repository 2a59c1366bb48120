"""The real main process around scripted children, with a small HTTP application: a program with serve's flags."""

import itertools
import os
import sys
from pathlib import Path

from corymb.scheduler.messages import Generate, Sampling
from corymb.serve import main_process
from corymb.serve.children import ChildOptions, Children
from corymb.serve.config import from_flags
from corymb.serve.engine import EngineUnavailable, ServedModel
from corymb.serve.flags import parser
from corymb.serve.listener import listen
from corymb.serve.timeline import Timeline
from corymb.serve.transport import DETOKENIZER, SCHEDULER, private_directory

CHILD = str(Path(__file__).with_name("scripted_child.py"))
COMMANDS = {
    SCHEDULER: (sys.executable, "-P", CHILD, "scheduler"),
    DETOKENIZER: (sys.executable, "-P", CHILD, "detokenizer"),
}


def make_app(engine, metrics):
    """`GET /generate/N` streams N tokens; `/live`, `/ready`, `/metrics`."""
    serial = itertools.count()

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            return
        path = scope["path"]
        if path.startswith("/generate/"):
            await generate(engine, f"r{next(serial)}", int(path.rpartition("/")[2]), send)
        elif path == "/metrics":
            await answer(send, 200, metrics.exposition())
        else:
            fine = engine.alive if path == "/live" else engine.alive and engine.state == "ready"
            await answer(send, 200 if fine else 503, engine.state.encode())

    return app


async def generate(engine, rid, count, send):
    """One line a token; a line `error: …` when the stream fails."""
    try:
        stream = engine.submit(Generate(rid, b"a\0\0\0b\0\0\0", Sampling(max_new_tokens=count)))
    except EngineUnavailable as error:
        await answer(send, 503, str(error).encode())
        return
    with stream:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while not stream.finished or stream._pending:
                lines = "".join(f"{text.text}\n" for text in await stream.next())
                await send({"type": "http.response.body", "body": lines.encode(), "more_body": True})
        except EngineUnavailable as error:
            await send({"type": "http.response.body", "body": f"error: {error}\n".encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def answer(send, status, body):
    """A whole answer."""
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


def main():
    """What `serve` does, around the scripted children."""
    config = from_flags(parser("serve").parse(sys.argv[1:]))
    timeline = Timeline()
    model = ServedModel(
        names=("scripted",), path="/", tokenizer_path="/", context_length=64, vocab_size=264, eos_ids=()
    )
    with listen(config.http) as listener, private_directory() as sockets, Children(COMMANDS, sockets) as children:
        print(f"sockets {sockets}", file=sys.stderr, flush=True)
        folder = str(sockets)
        children.tell(
            ChildOptions(sockets=folder, model_folder="", tokenizer_folder="", config=config.without_secrets())
        )
        status = main_process.run(
            config, model, make_app, listener=listener, sockets=sockets, children=children, timeline=timeline
        )
    os._exit(status)


if __name__ == "__main__":
    main()
