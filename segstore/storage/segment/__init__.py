"""A segment of a log: its files, its indexes, the scan of its batches, and the readers' view of segments."""
