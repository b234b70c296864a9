"""Tuning as a service: jobs come over HTTP into a database, are run by the scheduler on this machine's device, and
leave bundles. What one job has learned serves the next."""
