"""The `/v0` protocol as data: server, client, CLI, Spark and the OpenAPI document are made from it.

Nothing here waits or touches the world.
"""
