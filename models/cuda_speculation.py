"""Steps of a GPU's rows that go on from where the device has them: drafted, verified and settled without a word from
the host, which hears of it when all is done."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from corymb.models.cuda_copies import CudaCopies
from corymb.models.cuda_decode import Parts
from corymb.models.cuda_device import Device, Mark
from corymb.models.cuda_verify import Verifier
from corymb.models.execution import UNUSABLE
from corymb.models.locating import reserve
from corymb.models.logprobs import Scores, entries
from corymb.models.placement import Place
from corymb.models.speculation import Block, DeviceSpeculator
from corymb.scheduler.messages import Logprob
from corymb.scheduler.plan import Drafted, Drafts, Int32, Masks, Sampled, StepPlan

NUM_RESULTS = 4  # steps whose results may be unread; a loop keeps two in flight at most


@dataclass(frozen=True, slots=True)
class Times:
    """When a step's parts were over. Between `computed` and `settling` lies what it waits for masks."""

    begun: Mark
    drafted: Mark
    computed: Mark
    settling: Mark
    done: Mark


class Speculating:
    """Owns the memory that results of such steps arrive in."""

    def __init__(
        self,
        parts: Parts,
        speculator: DeviceSpeculator,
        device: Device,
        tiers: Sequence[int],
        copies: CudaCopies | None,
    ) -> None:
        """Captures verification of `tiers`. `copies`: of a cache with a second tier."""
        self.copies = copies
        self._speculator = speculator
        self._records = parts.records
        self._device = device
        self._place = Place(device.device)
        self._verifier = Verifier(parts, speculator.drafter, device, tiers)
        speculator.begin(self._verifier)
        num_rows, self._num_drafts = len(parts.rows.last_sampled), speculator.drafter.num_drafts
        self._results = [device.pinned(num_rows * (2 * self._num_drafts + 5)) for _ in range(NUM_RESULTS)]
        self._offers = [device.pinned(num_rows * (self._num_drafts + 1)) for _ in range(NUM_RESULTS)]
        self._turn = 0

    def launch(self, plan: StepPlan, begun: Mark) -> "SpeculativeStep":
        """Queues a step of a plan with windows."""
        assert plan.windows is not None, "only plans with windows leave rows where the device has them"
        reserve(plan.rows, plan.windows, plan.slots, self._verifier.rows)
        if self._records:
            assert plan.states is not None, "a plan without states for a model that has some"
            self._records.stage(plan.states)
        times = Times(begun, *(self._device.mark() for _ in range(4)))
        block = self._speculator.draft(plan, self._verifier, times.drafted.record)
        times.computed.record()
        self._turn = (self._turn + 1) % NUM_RESULTS
        return SpeculativeStep(self, plan, block, times, self._turn)

    def offer(self, plan: StepPlan, block: Block, turn: int) -> "Offer | None":
        """Queues the way to the host of what constrained rows verify; None where they draft nothing."""
        index, drafts = plan.constrained, block.token_ids
        if index is None or drafts is None or plan.windows is None or not plan.windows.most[index].any():
            return None
        where = self._place(index.astype(np.int64))
        packed = torch.cat((drafts[where].int(), block.windows[where, None]), dim=1)
        return Offer(self._copied(self._offers[turn], packed), self._recorded())

    @torch.inference_mode()
    def settle(self, block: Block, masks: Masks | None, times: Times, turn: int) -> "Arriving":
        """Queues what a step gives, and its way to the host."""
        times.settling.record()
        outputs = block.settle(masks)
        numbers = self._copied(self._results[turn], outputs.table)
        scores = None if outputs.scores is None else outputs.scores.on_host()
        times.done.record()
        return Arriving(numbers, outputs.num_drafts + 1, outputs.is_confident, scores)

    @staticmethod
    def _copied(memory: Tensor, numbers: Tensor) -> Tensor:
        held = memory[: numbers.numel()].view(numbers.shape)
        return held.copy_(numbers, non_blocking=True)

    def _recorded(self) -> Mark:
        mark = self._device.mark()
        mark.record()
        return mark


@dataclass(frozen=True, slots=True)
class Offer:
    """What constrained rows verify, on its way to the host."""

    numbers: Tensor  # int32 [N, num_drafts + 1]: drafts, and how many of them
    arrived: Mark

    def read(self) -> Drafts:
        """Waits for it."""
        self.arrived.synchronize()
        numbers: Int32 = self.numbers.numpy().copy()
        return Drafts(numbers[:, :-1], numbers[:, -1])


@dataclass(frozen=True, slots=True)
class Arriving:
    """What a step gave, on its way to the host."""

    numbers: Tensor  # see DeviceOutputs
    width: int
    confident: bool
    scores: Scores | None


class SpeculativeStep:
    """A StepResult: its drafts are being verified, and settled too unless rows wait for masks."""

    def __init__(self, owner: Speculating, plan: StepPlan, block: Block, times: Times, turn: int) -> None:
        self._owner = owner
        self._plan = plan
        self._block = block
        self._times = times
        self._turn = turn
        self._offer = owner.offer(plan, block, turn)
        self._arriving = owner.settle(block, None, times, turn) if plan.constrained is None else None

    def drafts(self) -> Drafts | None:
        """See StepResult. The forward runs meanwhile."""
        return None if self._offer is None else self._offer.read()

    def constrain(self, masks: Masks) -> None:
        """Queues the choices, behind the forward that runs meanwhile."""
        self._arriving = self._owner.settle(self._block, masks, self._times, self._turn)

    def wait(self) -> Sampled:
        """Blocks until the step's samples are on the host."""
        arriving, times = self._arriving, self._times
        assert arriving is not None, "rows of the step still wait for their masks"
        times.done.synchronize()
        numbers, width = arriving.numbers.numpy().copy(), arriving.width
        counts, num_verified, num_allowed, usable = numbers[:, width : width + 4].T
        said = np.arange(width) < counts[:, None]
        confidence = numbers[:, width + 4 :].view(np.float32) if arriving.confident else None
        waited_s, drafted = times.settling.seconds_since(times.computed), None
        if width > 1:
            draft_s, verify_s = times.drafted.seconds_since(times.begun), times.done.seconds_since(times.drafted)
            settle_s = times.done.seconds_since(times.settling)
            drafted = Drafted(
                num_verified.copy(), confidence, draft_s, verify_s - waited_s, num_allowed.copy(), settle_s=settle_s
            )
        return Sampled(
            token_ids=numbers[:, :width][said],
            counts=counts.copy(),
            forward_s=times.done.seconds_since(times.begun) - waited_s,
            logprobs=_logprobs(arriving.scores, counts.tolist()),
            errors=dict.fromkeys(np.flatnonzero(usable == 0).tolist(), UNUSABLE),
            drafted=drafted,
            copied=self._owner.copies.num_done if self._owner.copies else None,
        )


def _logprobs(scores: Scores | None, counts: Sequence[int]) -> dict[int, list[Logprob]]:
    """Of the tokens that count."""
    if scores is None:
        return {}
    return {owner: scored[: counts[owner]] for owner, scored in entries(scores).items()}
