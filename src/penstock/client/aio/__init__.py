"""The client for asyncio. `penstock.client.blocking` is made from it."""
