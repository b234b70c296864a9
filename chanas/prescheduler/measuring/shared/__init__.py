"""Several tunings on the cores and the device of one machine. Each runs in a process of its own, in turns: what it asks
for meanwhile becomes stages of the scheduler, and so do its turns."""
