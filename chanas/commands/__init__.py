"""The command line: one function per command, which reads options, calls one workflow and prints lines."""
