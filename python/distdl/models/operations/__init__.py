"""The form of rules for operations: parts of tensors that they read, and places of their blocks."""
