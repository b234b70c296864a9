"""The state of the service in one SQLite file, jobs, tokens, uploads and the use of devices, and the uploaded files."""
