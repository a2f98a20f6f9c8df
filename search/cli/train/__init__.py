"""`isotrope train`: one module a method."""

from search.cli.lazy_group import LazyGroup

COMMANDS = {
    "latte-mix": ("search.cli.train.latte_mix", "Train the auto-encoder of pooling latte-mix (experimental)."),
}
command = LazyGroup(
    "train",
    commands_at=COMMANDS,
    help="Train what a pooling needs, without labels.\n\nExample:\n\n  isotrope train latte-mix docs.jsonl -o trained",
)
