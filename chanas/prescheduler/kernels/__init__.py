"""Operators, their schedule spaces and their schedules, one folder per processor."""
