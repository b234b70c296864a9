"""Latencies of whole networks on a new device, from few measurements there and many elsewhere.
In: features of architectures, log latencies on known devices, a few on the new one. Out: a latency and its standard
deviation for each network. No command uses it yet; `benchmarks/transfer.py` says what it is worth."""
