"""Fuzzes everything that parses bytes, since anybody may have written what is on disk.

`targets` is the table of parsers, `mutate` and `batches` make inputs, `differ` compares the native decoder
with the plain Python one, `child` runs inputs under limits of time and memory, `run` is `make fuzz`.

On disk: `corpus/<target>/<digest>`, small inputs that each reached another outcome; read only by tests.
"""
