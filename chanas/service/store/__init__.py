"""The state of the service in one SQLite file: jobs, tokens, uploads, use of devices. Uploaded files lie beside it."""
