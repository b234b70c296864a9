"""The command line: one function per command. It reads options, calls one workflow and prints lines."""
