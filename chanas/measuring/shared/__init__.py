"""Several tunings on shared machines: cores of this one, its devices and those of others, a cluster that builds. Each
runs in a process of its own, in turns: what it asks for meanwhile becomes stages of the scheduler, and so do its
turns."""
