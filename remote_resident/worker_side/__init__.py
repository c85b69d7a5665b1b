"""What runs inside a model's own interpreter: loaded by path, standard library only."""
