"""Stateless tensor functions: attention back ends, norms, rope, sampling. Policy lives elsewhere; imports no sibling."""
