"""Groups of the classic protocol: all members join each generation, and one member, the leader, assigns the
partitions.
"""
