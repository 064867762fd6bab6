"""The metadata of a replicated store: Kafka's metadata records, the log that holds them in each voter, and
what they say together.
"""
