"""Hot standbys: a standby is a directory that replicates a primary. A standby can be promoted to the
primary.
"""
