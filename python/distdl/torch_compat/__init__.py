"""All uses of names that torch and torchmetrics keep private, one file for each of its tools."""
