"""Every picture of a data set, read once before anything begins: what there is, what is a copy, what cannot be used."""
