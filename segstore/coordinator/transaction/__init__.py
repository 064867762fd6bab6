"""Transactions: which producer may write under a transactional id, and whether its records are committed.

`producer_ids` hands out producer ids; `coordinator` takes requests and moves transactions on; `state_log`
keeps the state of each transactional id in `__transaction_state`, in the bytes of `schema`; `metadata` says
which states may follow which; `markers` writes the ends into the partitions; `lost` ends what a power cut
left open.
"""
