"""Attention of transformers: `naming` finds each in a graph, as a node on rows of tokens; `kernel` computes such nodes
in channel blocks."""
