"""`isotrope push` and `isotrope pull`."""

from pathlib import Path

import click

from search.cli.options import PATH, json_option, quiet_option


@click.command("push")
@click.argument("index", type=PATH)
@click.argument("url", metavar="hf://USER/NAME")
@click.option("--private", is_flag=True, help="Create a private repository.")
@click.option("--force", is_flag=True, help="Replace another or a newer index in the repository.")
@json_option
@quiet_option
def push(index: Path, url: str, private: bool, force: bool, as_json: bool, quiet: bool) -> None:
    """Upload an index to the Hugging Face hub.

    hf://USER/NAME is a dataset repository, which is created if needed; hf://USER/NAME@BRANCH is a branch of it. It
    contains the newest generation; only missing files are uploaded. Log in first: hf auth login, or set HF_TOKEN.

    \b
    Example, on the index of `make demo`:
      isotrope push demo/index hf://user/demo-index
    """
    from search.cli.output import print_json, print_line, print_note
    from search.cli.progress import ProgressBar
    from search.export.push import PushOptions, push_index
    from search.formatting import counted, size

    with ProgressBar(quiet) as progress:
        report = push_index(index, url, PushOptions(private, force), progress)
    for note in report.notes:
        print_note(note)
    if as_json:
        print_json(vars(report) | {"index": str(report.index)})
        return
    sent = f"{counted(report.sent, 'file')} sent, {size(report.bytes_sent)}" if report.sent else "up to date"
    removed = f"; {counted(report.removed, 'file')} of the previous index removed" if report.removed else ""
    print_line(
        f"{report.url} has generation {report.generation}, {counted(report.documents, 'document')}: {sent}{removed}."
    )


@click.command("pull")
@click.argument("url", metavar="hf://USER/NAME")
@click.argument("index", type=PATH)
@json_option
@quiet_option
def pull(url: str, index: Path, as_json: bool, quiet: bool) -> None:
    """Download an index from the Hugging Face hub.

    hf://USER/NAME is a dataset repository, hf://USER/NAME@REVISION a branch, tag or commit of it. INDEX is a new
    folder, or an earlier generation of the same index. Only missing files are downloaded; all are compared with their
    digests.

    \b
    Example:
      isotrope pull hf://user/demo-index demo/pulled
    """
    from indexer.pipeline.pull import pull_index
    from search.cli.output import print_json, print_line
    from search.cli.progress import ProgressBar
    from search.formatting import counted, size

    with ProgressBar(quiet) as progress:
        report = pull_index(url, index, progress)
    if as_json:
        print_json(vars(report) | {"index": str(report.index)})
        return
    fetched = f"{counted(report.fetched, 'file')} downloaded, {size(report.bytes_fetched)}"
    print_line(
        f"{report.index} has generation {report.generation}, {counted(report.documents, 'document')}: "
        f"{fetched if report.published or report.fetched else 'up to date'}."
    )
