"""Searches from tables and accuracies to bundles: one budget, several targets, the whole front, ablations."""
