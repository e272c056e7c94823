"""Lake tables read and written by Spark."""
