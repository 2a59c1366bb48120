"""The radix tree, its components, slots, leases and eviction, in plain Python and numpy. No sibling, no torch."""
