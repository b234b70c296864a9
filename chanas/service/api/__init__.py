"""The HTTP API: requests in, JSON, events and bundles out. FastAPI is imported here and by the page alone."""
