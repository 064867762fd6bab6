"""The common part of mirrors and standbys: logs of this store that replicate logs of another machine, by
fetches over Kafka's protocol, byte for byte.
"""
