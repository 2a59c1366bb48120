"""What drafting has won over steps without drafts, and what it may lose."""

SHARE = 0.005  # of the time that steps without drafts take, for trying whether drafts would pay
MOST = 16  # steps without drafts: what was won is not kept beyond so many, or bad drafts could eat for long
FIRST = 4  # such steps: what drafts may lose before anything is known of them


class Account:
    """Seconds. Whatever the cost model foretells, drafting that goes on losing is stopped: a server that drafts is
    slower than one that does not by about SHARE at worst. What is at risk is held back until its step is known."""

    def __init__(self) -> None:
        """Nothing was won or lost."""
        self._won_s: float | None = None  # None: before the first step, whose length says what may be lost
        self._for_tries_s = 0.0
        self._wanted_s = 0.0  # for the try that was asked for last: more is not saved
        self._held: dict[int, tuple[float, bool]] = {}  # by step: seconds at risk, and whether it is a try

    def lets(self, step: int, risk_s: float, plain_s: float) -> bool:
        """Whether drafts that are thought to pay may be verified in this step: without them it takes `plain_s`, and
        they lose `risk_s` if none is accepted. Holds that back."""
        self._held.pop(step, None)
        if self._won_s is None:
            self._won_s = FIRST * plain_s
        if self._won_s <= sum(held for held, is_try in self._held.values() if not is_try):
            return False
        self._held[step] = max(risk_s, 0.0), False
        return True

    def lets_try(self, step: int, risk_s: float) -> bool:
        """The same of drafts that are not thought to pay."""
        self._held.pop(step, None)
        self._wanted_s = risk_s
        if any(is_try for _, is_try in self._held.values()) or self._for_tries_s < risk_s:
            return False
        self._held[step] = risk_s, True
        return True

    def plain(self, step: int, took_s: float) -> None:
        """A step without drafts took so long."""
        self._held.pop(step, None)
        if self._won_s is not None and self._won_s <= 0:
            self._won_s += SHARE * took_s
        else:
            self._for_tries_s = min(self._for_tries_s + SHARE * took_s, self._wanted_s)

    def drafted(self, step: int, won_s: float, plain_s: float) -> None:
        """A step with drafts won so many seconds over steps without, of which each takes `plain_s`; below 0: lost."""
        _, is_try = self._held.pop(step, (0.0, False))
        if is_try:  # one that pays leaves what it held back for the next, which comes at once
            self._for_tries_s += min(won_s, 0.0)
        elif self._won_s is not None:
            self._won_s = min(self._won_s + won_s, MOST * plain_s)
