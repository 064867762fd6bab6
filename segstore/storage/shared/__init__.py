"""A store that several processes write: their shared file, their membership, and the connection between them.

On disk in `.segstore`: `shared` (`shared_file`), `members` (an empty file, `member_locks`), and `host`, the
host's socket (`coherence`).

The processes that have such a store open are its members. One of them is the host: it holds the store's lock
`.lock`, like the writer of any store. The others are guests.
"""
