"""Generated code checked where the device is elsewhere: on QEMU, on a GPU that is there, by the compiler alone."""
