"""The elastic network: layers whose shape is chosen at each step, statistics recalibrated."""
