"""A bundle or a tuned network as a static library with a C header, for devices without Python."""
