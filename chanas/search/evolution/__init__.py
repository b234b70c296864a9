"""Evolutionary search: populations, constraints, Pareto fronts."""
