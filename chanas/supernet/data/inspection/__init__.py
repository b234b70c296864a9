"""Every picture of a data set read once, before anything begins: copies, damaged and odd ones."""
