"""Where entries rest: one interface (`store.py`), four stores behind it."""
