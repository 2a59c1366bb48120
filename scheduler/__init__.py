"""Requests, order, admission, retraction, finishing, and the loop. Imports `cache`; never torch."""
