"""The log of one partition: record batches are appended, made durable, made visible, read and recovered
here.
"""
