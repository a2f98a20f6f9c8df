"""`isotrope convert`."""

from pathlib import Path

import click


@click.command("convert")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
def command(source: Path, target: Path) -> None:
    """Turn pytorch_model.bin weights into safetensors.

    Makes the new folder TARGET with the weights of SOURCE as model.safetensors and copies of the files that a
    model consists of; anything else in SOURCE stays there, and no link is followed out of it. The .bin file is
    read with weights_only=True, so no code in it can run.

    \b
    Example:
      isotrope convert old-model new-model
    """
    from indexer.encoders.convert import convert_to_safetensors
    from indexer.output_files import check_output_folder

    check_output_folder(target, "TARGET")
    convert_to_safetensors(source, target)
    click.echo(f"{target} holds the model with safetensors weights.")
