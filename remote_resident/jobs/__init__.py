"""Long jobs: their worker, and the host that supervises it."""
