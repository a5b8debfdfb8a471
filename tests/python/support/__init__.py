"""Shared by the tests. Nothing here is a test."""
