"""The log of one partition: record batches are appended, made durable and visible, read and recovered."""
