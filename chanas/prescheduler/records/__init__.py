"""Measured schedule points in SQLite, the best of them measured again, and those of other devices (`sources`)."""
