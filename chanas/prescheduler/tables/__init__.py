"""Latency tables: filled, calibrated with whole networks, checked, and compared with default schedules."""
