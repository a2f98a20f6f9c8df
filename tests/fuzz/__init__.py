"""The project's own fuzzer: hostile files, links, outputs and options, and a judge of what commands make of them."""
