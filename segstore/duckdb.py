"""`segstore.duckdb`: topics as views of a DuckDB connection. Nothing is on disk. Threads: any."""
