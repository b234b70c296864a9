"""Files of a run: where they lie, and how they are written whole."""
