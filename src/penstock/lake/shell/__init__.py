"""The lake's touch of the world: databases, files, threads."""
