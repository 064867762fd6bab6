"""The common base of mirrors and standbys, which replicate logs of another machine into logs of this store,
byte for byte, by fetches over Kafka's protocol. A followed log is a log of this store that replicates such a
log. The source is the machine or cluster that is replicated: the mirrored Kafka cluster, or the standby's
primary.
"""
