"""Records of other systems: measure records of Ansor (TenSet), databases of MetaSchedule, and T1 and T4 files of Kernel
Tuner go in, and what our models can read of them comes out as a data set. Our own records go out as T4, with their
schedule space as T1."""
