"""The commands that change an index: build, add, delete, refit, compact. `steps` are those of a build."""
