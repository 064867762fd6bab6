"""The broker's half: groups, offsets, transactions and quotas, over a store."""
