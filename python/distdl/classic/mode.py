"""Whether classic mode is on, in this process."""

_on = False


def is_on() -> bool:
    """Whether it is."""
    return _on


def switch(on: bool) -> None:
    """Note that it is turned on or off. See ``distdl.classic.activation``."""
    global _on
    _on = on
