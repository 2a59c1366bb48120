"""What requests are told, gathered until the loop sends it."""

from corymb.scheduler.messages import Finish, Generate, Logprob, Output
from corymb.scheduler.request import Request


class Outbox:
    """Outputs in order. The first of a request also carries what is told once."""

    def __init__(self) -> None:
        """Starts empty."""
        self._outputs: list[Output] = []

    def take(self) -> list[Output]:
        """Everything since the last call."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def tell(
        self,
        request: Request,
        token_ids: list[int],
        *,
        finish: Finish | None = None,
        logprobs: list[Logprob] | None = None,
    ) -> None:
        """Adds what one step gave `request`."""
        speculated = request.speculated if finish is not None else None
        rid, num_prompt, num_cached = request.rid, len(request.prompt_ids), request.num_cached
        if request.answered:
            one = Output(rid, token_ids, num_prompt, num_cached, finish, None, logprobs, speculated=speculated)
            self._outputs.append(one)
            return
        request.answered = True
        queue_s = 0.0 if request.first_launch_s is None else max(request.first_launch_s - request.arrived_s, 0.0)
        scores = _prompt_logprobs(request)
        told_once = (request.text, logprobs, scores, queue_s, request.embedding)
        self._outputs.append(Output(rid, token_ids, num_prompt, num_cached, finish, *told_once, speculated))

    def refuse(self, message: Generate, finish: Finish) -> None:
        """Answers a request that never became one."""
        self._outputs.append(Output(message.rid, [], len(message.prompt) // 4, 0, finish, message.text))


def _prompt_logprobs(request: Request) -> list[Logprob] | None:
    if request.logprobs is None or request.logprobs.prompt_from < 0:
        return None
    if request.logprobs.prompt_from == 0:
        # Nothing comes before the first token, so nothing scores it.
        return [Logprob(int(request.prompt_ids[0]), None), *request.prompt_logprobs]
    return request.prompt_logprobs
