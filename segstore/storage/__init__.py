"""The engine: store, logs, segments, recovery, check. Knows files and time; see each module for what it
owns.
"""
