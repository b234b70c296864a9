"""A bundle as C sources and a static library, for devices without Python."""
