"""Runs groups whose members fail, and judges them by Jepsen's anomalies: see `__main__`."""
