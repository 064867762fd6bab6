"""Topics as tables for polars, pyarrow and DuckDB; the values can be decoded to columns."""
