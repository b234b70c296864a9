"""chanas: searches for the network architecture and the compiled program of an image task together, on a device,
inside a latency budget. The Python API is `chanas.workflows`; the command line is `chanas`."""

__version__ = "0.1.0"
