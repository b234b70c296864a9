"""Latencies of whole networks on a new device, from few measurements there and many elsewhere.
In: features of architectures, log latencies on known devices, a few on the new one. Out: a latency and its standard
deviation for each network. `networks` reads and writes them as files, for `chanas lut predict`."""
