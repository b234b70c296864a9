"""Supernets that others trained and published: a file of theirs in, the weights of our supernet out."""
