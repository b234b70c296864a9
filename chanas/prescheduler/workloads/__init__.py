"""The vocabulary of tuning: operators to tune, points of their schedule spaces, and cases with the right results."""
