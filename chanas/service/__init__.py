"""Tuning as a service for a team: jobs over HTTP, run by the scheduler. Jobs come into a database and leave bundles;
what one has learned serves the next."""
