"""Drafters, calibration, cost model, width allocation and verification."""
