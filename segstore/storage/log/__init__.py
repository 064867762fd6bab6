"""A partition's log: how batches are appended, made durable, made visible, read and recovered."""
