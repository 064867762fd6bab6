"""Topics as tables of polars, pyarrow's datasets and DuckDB, and values that are decoded to columns."""
