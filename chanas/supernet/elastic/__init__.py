"""The elastic network: layers whose shape is chosen at each step, and statistics recalibrated for a sub-network."""
