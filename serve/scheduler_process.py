"""The scheduler process, one a rank: the only ones that know tensors."""

import signal
import sys

from corymb.serve.childhood import Childhood
from corymb.serve.transport import scheduler_name


def main() -> None:
    """Runs until the main process ends it."""
    rank = int(sys.argv[1])
    childhood = Childhood(scheduler_name(rank), at_parents_death=signal.SIGKILL)
    from corymb.serve.scheduling import work  # noqa: PLC0415 - torch loads while the main process checks the flags

    childhood.run(lambda options, parent: work(options, parent, rank))


if __name__ == "__main__":
    main()
