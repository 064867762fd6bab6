"""Transactions: the producers of transactional ids, and the commit or abort of the producers' records.

`producer_ids` allocates producer ids; `coordinator` handles requests and moves transactions from state to
state; `state_log` stores the state of each transactional id in `__transaction_state`, encoded by `schema`;
`metadata` has the states and their order; `markers` writes the markers into the partitions; `lost` commits or
aborts transactions that a power cut left open.
"""
