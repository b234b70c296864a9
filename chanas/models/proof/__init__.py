"""Proof that a compiled network gives the outputs of its framework, within what rounding explains."""
