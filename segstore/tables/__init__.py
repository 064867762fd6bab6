"""Makes topics readable as tables of polars, pyarrow and DuckDB, and can decode the values to columns."""
