"""All uses of names that torch keeps private, one file for each of its tools."""
