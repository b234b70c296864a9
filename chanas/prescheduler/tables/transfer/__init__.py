"""Tables of known devices, and a few blocks measured on a new one: in go latency tables, out comes one of the new
device, whose rows say whether they were measured."""
