"""A shared store, which several processes write: the shared file, the members, and their connections.

The processes that have a shared store open are its members. One member is the host: it holds the store's lock
`.lock`, like the writer of any store. All other members are guests.

On disk in `.segstore`: `shared` (module `shared_file`), `members`, an empty file (`member_locks`), and
`host`, the host's socket (`coherence`).
"""
