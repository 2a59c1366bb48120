"""Hypothesis profiles: `everyday`, the same examples in every run; `--hypothesis-profile=soak` for the night."""

from hypothesis import settings

settings.register_profile("everyday", deadline=None, derandomize=True, max_examples=100, stateful_step_count=50)
settings.register_profile("soak", deadline=None, print_blob=True, max_examples=5000, stateful_step_count=50)
settings.load_profile("everyday")
