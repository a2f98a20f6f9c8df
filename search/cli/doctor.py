"""`isotrope doctor`."""

import sys
from typing import TYPE_CHECKING

import click

from search.cli.options import json_option

if TYPE_CHECKING:
    from search.machine.found import Machine


@click.command("doctor")
@click.option("--device", default="auto", show_default=True, help="Where it would run: auto, cpu, cuda, cuda:N or mps.")
@json_option
def command(device: str, as_json: bool) -> None:
    """Show the hardware, the chosen backends and any problems.

    Libraries are imported, and products of matrices race for some milliseconds. Exits with 1 if something that is
    needed is broken; what is merely slow is a warning.

    \b
    Examples:
      isotrope doctor
      isotrope doctor --json
    """
    from dataclasses import asdict

    from search.cli.output import print_facts, print_json, print_line
    from search.machine.choices import choices
    from search.machine.found import examine
    from search.machine.problems import problems

    machine = examine()
    chosen, wrong = choices(machine, device), problems(machine)
    passed = not any(problem.serious for problem in wrong)
    if as_json:
        print_json({
            "found": asdict(machine),
            "choices": [asdict(choice) for choice in chosen],
            "problems": [asdict(problem) for problem in wrong],
            "passed": passed,
        })  # fmt: skip
    else:
        print_facts(_in_words(machine))
        click.echo()
        print_facts([(choice.task, f"{choice.runs}\n{choice.why}") for choice in chosen])
        for problem in wrong:
            click.echo()
            print_line(f"{'broken' if problem.serious else 'warning'}: {problem.what} {problem.way_out}")
    if not passed:
        sys.exit(1)


def _in_words(machine: "Machine") -> list[tuple[str, str]]:
    from search.text import size

    cores, limit = machine.cores, machine.memory_limit
    paid = "" if cores.limit is None else f", time for {cores.limit:g}"
    rates = ", ".join(f"{kind} {rate:,.0f}" for kind, rate in machine.rates.items())
    gpus = "; ".join(f"{one.name}, {size(one.bytes)}, capability {one.capability}" for one in machine.gpus)
    faiss = machine.faiss.level or machine.faiss.options or "none"
    openvino = "not installed" if machine.openvino is None else ", ".join(machine.openvino)
    facts = [
        ("system", machine.system),
        ("processor", machine.processor),
        ("instructions", ", ".join(machine.instructions) or "not told by the system"),
        ("cores", f"{cores.used} used: {cores.present} present, {cores.allowed} allowed{paid}"),
        ("memory", size(machine.memory) + ("" if limit is None else f", of which {size(limit)} may be used")),
        ("GPUs", gpus or "none that torch sees"),
        ("products", f"{rates} GFLOP/s a thread (torch)"),
        ("libraries use", f"torch {machine.torch_level}; FAISS {faiss}; OpenVINO {openvino}"),
        ("temporary files", f"{machine.temporary.folder}, {size(machine.temporary.free)} free"),
        ("cache", f"{machine.cache.folder}, {size(machine.cache.free)} free"),
        ("open files", f"at most {machine.open_files:,}" if machine.open_files >= 0 else "no limit"),
        ("versions", ", ".join(f"{name} {version}" for name, version in machine.versions.items())),
    ]
    if machine.environment:
        facts.append(("environment", ", ".join(f"{name}={value}" for name, value in machine.environment.items())))
    return facts
