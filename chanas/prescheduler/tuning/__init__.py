"""The choice of schedule points to measure next: tuners, budgets and warm starts."""
