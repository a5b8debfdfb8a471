"""The base of all layers: options, votes, calls, and support for compilers."""
