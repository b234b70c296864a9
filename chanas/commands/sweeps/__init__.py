"""`chanas sweep`: its commands, and how the options of other commands become the rows of a sweep."""
