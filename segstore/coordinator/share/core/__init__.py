"""The rules of a share partition, without files, clocks, threads or locks."""
