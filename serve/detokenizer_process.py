"""The detokenizer process: steps of token ids come in, texts go out. Imports no torch."""

import signal
from pathlib import Path

from corymb.scheduler.messages import Step, ToDetokenizer
from corymb.serve.childhood import Childhood, Parent, Pulse, start_heartbeat
from corymb.serve.children import ChildOptions
from corymb.serve.failpoints import Failpoints
from corymb.serve.transport import DETOKENIZER, Inbox, address

_IDLE_S = 1.0


def main() -> None:
    """Runs until the main process ends it."""
    childhood = Childhood(DETOKENIZER, at_parents_death=signal.SIGCONT)
    from corymb.serve.detokenizer import Detokenizer  # noqa: PLC0415 - after the signals are settled
    from corymb.serve.tokenizer import load_tokenizer  # noqa: PLC0415

    def work(options: ChildOptions, parent: Parent) -> None:
        sockets, pulse = Path(options.sockets), Pulse()
        failpoints = Failpoints("detokenizer", options.config.runtime.failpoints)
        with Inbox[ToDetokenizer](address(sockets, DETOKENIZER), Step) as inbox:
            with parent.stage("tokenizer"):
                detokenizer = Detokenizer(load_tokenizer(Path(options.tokenizer_folder)))
                failpoints.at_start()
            start_heartbeat(DETOKENIZER, sockets, pulse)
            parent.ready({})
            while True:
                pulse.rest()
                steps = inbox.receive(_IDLE_S)
                pulse.work()
                for step in steps:
                    failpoints.at_step()
                    parent.send(detokenizer.texts(step))

    childhood.run(work)


if __name__ == "__main__":
    main()
