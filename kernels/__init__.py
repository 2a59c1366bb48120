"""Stateless tensor functions: attention back ends, norms, rope, sampling. No policy, and no sibling imported."""
