"""A whole replicated store, thread by thread, on faulty disks, against what applications were told.

The store runs as it is, with all its threads, but only one of them at a time: whenever it waits, `turns`
draws who goes on. So the same seed gives the same run. `steps` draws what applications, operators and disks
do, `world` does it, and `judge` knows what must be there. What fails is cut down to a short run that fails.
"""
