"""The commands of `chanas records`: tuning records as a data set."""
