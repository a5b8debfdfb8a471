"""The arguments of torch's functions: their values, and calls that change each of them.

- ``signatures.py`` reads the arguments of a function off torch: their names, types and defaults.
- ``values.py`` is the table of values. An argument without a value there raises KeyError, so that no new one is missed.
- ``calls.py`` makes the calls of a function: one with required arguments alone, one for each argument that is optional,
  by its name and by its position, and one with all arguments by name in another order.
"""
