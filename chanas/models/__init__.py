"""Finished networks from elsewhere: opened, read as a graph of operators, and made fast like the blocks of a table."""
