"""A model of a log that several processes append to, by all interleavings: guests, a host and its
successors, kills at every step, fences, writes that fail, torn writes.

`state` has the words of `.segstore/shared` and the files, `appends` the steps of a guest, `host` and `fence`
those of a host, `reader` those of a reader, `world` has them all; `checks` are the properties, `search` looks
at every state. `together` is a model of its own: two logs that are shown at one moment. A step is one load,
store, compare-and-swap or system call; loads are one step if nobody else can store between them. A stopped
process is one that takes no step. In `together` the guest's append is one step, since it holds the lock.
"""
