"""What mirrors and standbys have in common: they replicate logs of another machine into logs of this store,
byte for byte, by fetches over Kafka's protocol. A log of this store that replicates a log is a followed log.
The source is the machine or cluster that is replicated: the Kafka cluster of a mirror, or the primary of a
standby.
"""
