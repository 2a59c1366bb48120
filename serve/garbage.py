"""Keeps Python's collector away from what lives long: a tree of 100,000 nodes takes it most of a second to walk."""

import gc


def settle() -> None:
    """Looks through what is young, then exempts all that is left from further searches.

    Memory still comes back when the last reference goes, as it does for nodes, requests and leases. Only cycles that
    break off later stay, so what lives long must not form any that it gives up.
    """
    gc.collect(1)
    gc.freeze()
