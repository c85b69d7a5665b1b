"""How distributions are called, as the package index compares names."""


def normalised(name: str) -> str:
    """Give a distribution's name as the index compares names."""
    name = name.lower().replace("_", "-").replace(".", "-")
    while "--" in name:
        name = name.replace("--", "-")
    return name
