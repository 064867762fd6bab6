"""Logs of this store that follow those of another machine: raw fetches over Kafka's protocol, kept byte for
byte. What mirrors and standbys have in common.
"""
