"""Recipes as data: one TOML file each, every line an axis and its value."""
