"""The commands of `tu remote`, each with what it is for."""

COMMANDS = {
    "setup": "bring this machine to what a provider declares, and prove it",
    "check": "say whether all that is declared still holds; read-only",
    "verify": "read every weight in full, whatever is remembered of it",
    "list": "list the providers",
    "report": "show what this machine measured",
    "accept": "put a provider through the acceptance suite that its status rests on",
    "env": "create a provider's environment by its lock's recipe",
    "lock": "resolve a lock anew",
    "room": "say whether a provider would fit beside what this machine holds now",
    "call": "ask a provider for one answer",
    "ps": "list who holds memory on this machine, whoever started it",
    "stop": "end a provider's worker",
    "restart": "end a provider's worker, forget its failed starts, start it anew",
    "logs": "show what a provider's workers wrote",
    "daemon": "run the host daemon, which watches jobs and owns endpoints",
}
"""Each is the module of that name here, with `arguments(parser)` and `run(asked)`."""

GROUPS = {
    "job": "run long jobs, watch and cancel them",
    "endpoint": "register and use model services that are swapped in on demand",
}
"""Each is a package of that name here, with a table of commands of its own."""
