"""The recipe of a build: settings and their loading, the recipes that ship, and the methods of papers by name."""
