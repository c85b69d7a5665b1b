"""The caller's side of a worker: start it, ask it, end it."""
