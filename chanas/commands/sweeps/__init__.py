"""`chanas sweep`: options of other commands become the rows of a sweep."""
