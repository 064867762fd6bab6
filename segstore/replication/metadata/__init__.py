"""The metadata of a replicated store: Kafka's metadata records, the log of these records in each voter, and
the image, which is the state that the records describe.
"""
