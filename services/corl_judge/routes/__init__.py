"""The REST API, version 1: one module a noun."""
