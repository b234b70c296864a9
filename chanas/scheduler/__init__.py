"""Many tuning jobs on shared machines: which stage of which job runs where, and when. In go jobs that offer their
stages, resources that serve them, and a policy; out come the results, handed to the jobs, and a trace of all that ran.
Nothing here knows of compilers or networks."""
