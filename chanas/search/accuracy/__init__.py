"""Predicted and measured accuracies of architectures."""
