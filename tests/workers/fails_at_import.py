"""Miss the stack that the model needs."""

import a_stack_that_is_not_there  # noqa: F401


def build(config):
    return None
