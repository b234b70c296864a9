"""Measured schedule points in SQLite, and the best of them measured again."""
