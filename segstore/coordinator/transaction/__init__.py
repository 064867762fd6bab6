"""Transactions: who may write under which producer id, and what becomes of what was written.

`producer_ids` hands out ids; `coordinator` takes requests. `entries` keeps the state of each transactional id
in `__transaction_state` through `state_log`, in the bytes of `schema`; `transitions` takes it on from there.
"""
