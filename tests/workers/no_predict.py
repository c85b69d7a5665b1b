"""Leave out what every script must have."""


def build(config):
    return None
