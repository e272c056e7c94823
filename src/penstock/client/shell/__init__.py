"""The client's touch of the world: connections, the async and the blocking face."""
