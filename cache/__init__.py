"""The radix tree, its components, slots, leases and eviction: plain Python and numpy. Imports no sibling; never torch."""
