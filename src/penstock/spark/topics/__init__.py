"""Topics read and written by Spark."""
