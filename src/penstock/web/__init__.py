"""The dashboard: pages, their assets, and what a browser runs."""
