"""Stacks that a process writes down on a signal."""


def are_told(log: str) -> bool:
    """Say whether all of them are written.

    The main thread's come last, its module's outermost. Until then the frames of the
    other threads are read while they run: one that ends meanwhile can end the process.
    """
    _, found, told = log.rpartition("most recent call first")
    return bool(found) and "in <module>\n" in told
