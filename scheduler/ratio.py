"""How much of the output that running requests may still produce admission sets aside for them."""

RETRACT_STEPS = 20  # after a retraction, room for at least so many steps of every survivor
DECAY_STEPS = 600
START = 0.7
FLOOR_SHARE = 0.14


class NewTokenRatio:
    """A share in (0, 1]: starts high, falls while decoding goes well, jumps up after a retraction."""

    def __init__(self, conservativeness: float) -> None:
        """`conservativeness` above 1 admits later and retracts less."""
        self.start = min(START * conservativeness, 1.0)
        self.floor = min(self.start * FLOOR_SHARE, 1.0)
        self._decay = (self.start - self.floor) / DECAY_STEPS
        self.value = self.start

    def decay(self) -> None:
        """A decode step passed without a retraction."""
        self.value = max(self.value - self._decay, self.floor)

    def reset(self) -> None:
        """Nothing runs."""
        self.value = self.start

    def raise_after_retraction(self, *, num_decoded: int, num_requests: int, max_new: int) -> None:
        """`num_decoded` and `max_new` are sums over the `num_requests` that were kept."""
        self.value = min((num_decoded + RETRACT_STEPS * num_requests) / (max_new + 1), 1.0)
