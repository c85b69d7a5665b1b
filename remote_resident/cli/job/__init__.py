"""`tu remote job`: long jobs in a provider's own environment."""

COMMANDS: dict[str, str] = {}
"""Each is the module of that name here, with `arguments(parser)` and `run(asked)`."""
