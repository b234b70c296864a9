"""The data model: architectures, genomes, targets, latency tables."""
