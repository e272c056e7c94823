"""Server push: event streams, WebSockets, jobs for workers, shared watches."""
