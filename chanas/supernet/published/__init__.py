"""Supernets that others published: a file of theirs in, the weights of our supernet out."""
