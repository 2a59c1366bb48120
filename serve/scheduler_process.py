"""The scheduler process: the only one that knows tensors."""

import signal

from corymb.serve.childhood import Childhood
from corymb.serve.transport import SCHEDULER


def main() -> None:
    """Runs until the main process ends it."""
    childhood = Childhood(SCHEDULER, at_parents_death=signal.SIGKILL)
    from corymb.serve.scheduling import work  # noqa: PLC0415 - torch loads while the main process checks the flags

    childhood.run(work)


if __name__ == "__main__":
    main()
