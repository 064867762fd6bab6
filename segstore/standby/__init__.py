"""Hot standbys: a standby is a directory that replicates a primary. It can be promoted to the primary."""
