"""What the server sends unasked: event streams, WebSockets, workers' jobs, shared watches."""
