"""A segment: its log file, its indexes, what is known of it, and the scan of its batches."""
