"""The `/v0` protocol as data: source of the server, client, CLI, Spark and OpenAPI document.

Nothing here waits or does IO.
"""
