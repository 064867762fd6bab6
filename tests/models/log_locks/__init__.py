"""A model of the locks of one log, by all interleavings: the append token, PAUSED, the log's lock, a
follower's lock, slots of threads that combine, interrupts, the pool that closes descriptors, the thread of a
follower's directory.

It is of the protocol that issue 40 asks for, in which C alone moves a log's end; `state` has the words that
threads share and what must hold of them, `appender` and `others` the steps of the threads, `search` looks at
every state. A step is one load, store, compare-and-swap or system call, or some that a lock makes one.
"""
