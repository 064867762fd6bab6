"""Games in which engines read a drawn topic as a table, and must answer as a loop over its records does."""
