"""A whole store, step by step, against a model in memory: the same seed gives the same run, byte for byte.

`steps` draws a run's steps, which are data; `world` executes them, `model` says what must be there then, and
`observe` what is. What fails is cut down to the shortest run that fails (`shrink`), to be kept in `cases`.
"""
