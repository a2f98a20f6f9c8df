"""The operating system: processor, memory limit, threads, child processes, cache folder, versions, regular files."""
