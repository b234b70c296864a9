"""Calibration: what the whole numbers of a network's values stand for, from pictures that it is run on."""
