"""Commands of the service: the one that serves, and those of its clients."""
