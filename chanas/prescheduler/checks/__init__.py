"""Generated code checked for correctness where the device is elsewhere: on QEMU, in a GPU emulator, by the
compiler alone."""
