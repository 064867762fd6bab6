"""Handles a shared store, which several processes write: the shared file, the processes (members), and the
connections between them.

The processes that have a shared store open are its members. One member is the host: it holds the store's lock
`.lock`, like the writer of any store. All other members are guests.

The files in `.segstore` are `shared` (module `shared_file`), the empty file `members` (`member_locks`), and
the host's socket `host` (`coherence`).
"""
