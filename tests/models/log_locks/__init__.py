"""A model of the locks of one log, by all interleavings: the append token, the tail's lock, slots of appends
that its holder makes, the interpreter's lock, signals, the pool of descriptors, syncs of C's, and a fence.

`state` has the words that threads share and what must hold of them; `native` the calls of C
(`_native/tail.c`, `combine.c`, `tail_lock.h`), `appender` and `others` the threads, `search` looks at every
state. A step is one load, store, exchange or system call, or several that a lock or the interpreter's lock
makes one.
"""
