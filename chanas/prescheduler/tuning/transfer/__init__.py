"""One operator on a new device, when every point of a finite space may have been timed on others: logarithms of seconds
there go in, which point to measure next comes out (`search`). How far another device is believed is what the first
measurements say of it (`mixture`), against a process that knows none (`process`)."""
