"""The partitioned log: executors, fair WAL and read schedulers, stores, recovery."""
