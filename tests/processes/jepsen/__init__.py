"""Groups whose members fail, judged by Jepsen's anomalies, see `__main__`."""
