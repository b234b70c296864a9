"""Training of the supernet and of single sub-networks: steps, phases, checkpoints, evaluation."""
