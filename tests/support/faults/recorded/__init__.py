"""Programs that are recorded below the C, and what power cuts leave of the directories that they write.

    recording = Recording(root)                   # what lies below `root` is on the disk
    recording.run("roll")                         # a program of `programs.PROGRAMS`, in a process of its own
    for cut in recording.cuts(rng, most=10):      # what cuts at some of its calls may leave
        cut.image.write(somewhere)

`tests/support/faults/recording/`, loaded by LD_PRELOAD, writes each call that changes anything to a trace;
`replay` carries the trace out on the disk of `faulty`, whose kinds of cuts are used. So calls that pass the
seam of `Files` by are seen, too: those of C and of other processes, and stores to mappings.
"""

from .recording import Recording, library

__all__ = ["Recording", "library"]
