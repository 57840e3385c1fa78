"""Stands in for the package `verifiers` 0.4 where it is not installed: as much as is used."""
