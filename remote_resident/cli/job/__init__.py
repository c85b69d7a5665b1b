"""`tu remote job`: long jobs in a provider's own environment."""

COMMANDS = {
    "run": "give a provider a job and watch it to its end",
    "list": "list the jobs, the newest first",
    "attach": "watch a job that runs, or see how one ended",
    "cancel": "ask a job to end",
    "logs": "show what a job wrote",
    "openapi": "print the OpenAPI document of a job worker's routes",
}
"""Each is the module of that name here, with `arguments(parser)` and `run(asked)`."""
