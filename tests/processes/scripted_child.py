"""Children without a model: the "scheduler" answers each prompt with its own tokens, the "detokenizer" spells them.

Run as `scripted_child.py scheduler|detokenizer`; a real child in everything but its work.
"""

import signal
import sys
import time
from pathlib import Path

import numpy as np

from corymb.scheduler.messages import (
    Abort,
    Finish,
    Generate,
    Output,
    Reply,
    Step,
    Text,
    Texts,
    ToDetokenizer,
    ToScheduler,
)
from corymb.serve.childhood import Childhood, Parent, Pulse, start_heartbeat
from corymb.serve.children import ChildOptions
from corymb.serve.failpoints import Failpoints
from corymb.serve.transport import DETOKENIZER, SCHEDULER, Inbox, Outbox, address

STEP_S = 0.02


def schedule(options: ChildOptions, parent: Parent) -> None:
    """Gives every request one token a step: max_new_tokens of them, whatever the prompt."""
    sockets, pulse, open_requests = Path(options.sockets), Pulse(), {}
    failpoints = Failpoints("scheduler", options.config.runtime.failpoints)
    start_heartbeat(SCHEDULER, sockets, pulse)
    with Inbox[ToScheduler](address(sockets, SCHEDULER), ToScheduler) as inbox:
        with parent.stage("weights"):
            failpoints.at_start()
        parent.ready({"max_total_num_tokens": 100, "page_size": 1})
        with Outbox(address(sockets, DETOKENIZER), bounded=True, linger_s=10) as outbox:
            while True:
                if not open_requests:
                    pulse.rest()
                messages = inbox.receive(0 if open_requests else 1.0)
                pulse.work()
                for message in messages:
                    take(message, open_requests, parent, outbox)
                if open_requests:
                    failpoints.at_step()
                    outbox.send(Step(list(step(open_requests))))
                    time.sleep(STEP_S)


def take(message, open_requests, parent, outbox):
    if isinstance(message, Generate):
        open_requests[message.rid] = [message, 0]
    elif isinstance(message, Abort):
        if open_requests.pop(message.rid, None) is not None:
            outbox.send(Step([Output(message.rid, [], 1, 0, Finish("abort"))]))
    else:
        parent.send(Reply(message.id, ok=True))


def step(open_requests):
    for rid, entry in list(open_requests.items()):
        request, count = entry
        prompt = np.frombuffer(request.prompt, np.int32)
        entry[1] = count + 1
        finish = Finish("length") if entry[1] >= request.sampling.max_new_tokens else None
        if finish:
            del open_requests[rid]
        yield Output(rid, [int(prompt[count % len(prompt)])], len(prompt), 0, finish)


def detokenize(options: ChildOptions, parent: Parent) -> None:
    """Spells token ids as characters."""
    sockets, pulse, counts = Path(options.sockets), Pulse(), {}
    failpoints = Failpoints("detokenizer", options.config.runtime.failpoints)
    start_heartbeat(DETOKENIZER, sockets, pulse)
    with Inbox[ToDetokenizer](address(sockets, DETOKENIZER), ToDetokenizer) as inbox:
        with parent.stage("tokenizer"):
            failpoints.at_start()
        parent.ready({})
        while True:
            pulse.rest()
            for message in inbox.receive(1.0):
                pulse.work()
                failpoints.at_step()
                parent.send(Texts([spell(output, counts) for output in message.outputs]))


def spell(output, counts):
    counts[output.rid] = counts.get(output.rid, 0) + len(output.token_ids)
    count = counts.pop(output.rid) if output.finish else counts[output.rid]
    text = "".join(map(chr, output.token_ids))
    return Text(output.rid, text, output.token_ids, output.num_prompt_tokens, 0, count, output.finish)


if __name__ == "__main__":
    if sys.argv[1] == "scheduler":
        Childhood(SCHEDULER, at_parents_death=signal.SIGKILL).run(schedule)
    Childhood(DETOKENIZER, at_parents_death=signal.SIGCONT).run(detokenize)
