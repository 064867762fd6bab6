"""A store that several processes write: the file that they share, who they are, and how they find each other.

On disk in `.segstore`: `shared` (see `shared_file`), `members` (an empty file, see `member_locks`), and
`host`, the host's socket (see `coherence`).

Of the processes that have such a store open, the members, one is the host: it holds the store's lock `.lock`,
as the writer of any store does. The others are guests.
"""
