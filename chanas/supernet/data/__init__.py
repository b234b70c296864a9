"""Images: data sets, their splits, and how they are loaded."""
