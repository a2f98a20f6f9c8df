"""Build the Dockerfile's image without Docker, serve an index from it, and query the server.

    python -m tests.container BASE WORK INDEX MODEL [PIP_CONF] [FOLDER...]

BASE is a root folder that stands in for PYTHON_IMAGE:

    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm BASE

WORK must not exist; it receives one root for each stage. PIP_CONF is the build secret `pip`. Each FOLDER is mounted at
its own path during the build, for a PIP_CONF that names local wheels. Needs root, on Linux.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

from tests.test_deployment import DOCKERFILE, ROOT, SERVICE

KEY = "a-key-of-the-container-test"
PATHS = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
SERVE = """
ip link set lo up
{server} &
server=$!
for second in $(seq {patience}); do {check} 2>/dev/null && break; kill -0 $server || exit 1; sleep 1; done
{check}; echo "health check: exit code $?"
curl -sS -i http://127.0.0.1:8080/v1/search -H 'Authorization: Bearer {key}' --json '{query}'; echo
curl -sS -o /dev/null -w 'without a key: %{{http_code}}\n' http://127.0.0.1:8080/v1/search --json '{query}'
kill -{signal} $server
wait $server && code=0 || code=$?
echo "server: exit code $code"
"""


@dataclass
class Stage:
    """One stage of the Dockerfile: its root folder and the settings that its instructions make."""

    root: Path
    arguments: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": PATHS})
    folder: str = "/"
    words: dict[str, list[str]] = field(default_factory=dict)

    def inside(self, command: list[str], *, user: str = "0:0") -> str:
        """Return a shell command that runs `command` in the root, as the user and with the stage's environment."""
        build = self.arguments if user == "0:0" else {}
        variables = [f"{name}={value}" for name, value in {**build, **self.environment}.items()]
        enter = ["chroot", f"--userspec={user}", "--groups=", str(self.root), "env", "-i", "-C", self.folder]
        return shlex.join([*enter, *variables, *command])

    def mount(self, source: Path, target: str, options: str = "bind,ro") -> str:
        """Return a shell command that mounts a file or a folder, after making the place to mount it on."""
        place = self.root / target.lstrip("/")
        if source.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        return shlex.join(["mount", "-o", options, str(source), str(place)])


def run(script: list[str], *namespaces: str) -> None:
    """Run shell commands in namespaces of their own, which end with every mount and process in them."""
    call = ["unshare", "--mount", "--pid", "--fork", "--kill-child", *namespaces, "sh", "-ec", "\n".join(script)]
    subprocess.run(call, check=True, env={"PATH": PATHS})


def copy(words: list[str], stage: Stage, stages: dict[str, Stage]) -> None:
    """Carry out COPY."""
    *sources, target = [word for word in words if not word.startswith("--")]
    (origin,) = [stages[word.removeprefix("--from=")].root for word in words if word.startswith("--from=")] or [ROOT]
    for source in [origin / name.lstrip("/") for name in sources]:
        place = stage.root / stage.folder.lstrip("/") / target.lstrip("/")
        place = place / source.name if target.endswith("/") else place
        place.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", "-T", source, place], check=True)


def build(base: Path, work: Path, mounts: list[tuple[Path, str]]) -> Stage:
    """Carry out the Dockerfile and return its last stage."""
    stages: dict[str, Stage] = {}
    stage = Stage(base)
    for name, rest in DOCKERFILE:
        print(name, rest, flush=True)
        match name:
            case "FROM":
                stage = stages[rest.split()[-1]] = Stage(work / rest.split()[-1])
                work.mkdir(parents=True, exist_ok=True)
                subprocess.run(["cp", "-a", "-T", base, stage.root], check=True)
                (stage.root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
            case "ARG":
                stage.arguments[rest.partition("=")[0]] = rest.partition("=")[2]
            case "ENV":
                given = [word.partition("=") for word in shlex.split(rest)]
                stage.environment |= {key: Template(value).substitute(stage.environment) for key, _, value in given}
            case "WORKDIR":
                stage.folder = rest
                (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "COPY":
                copy(rest.split(), stage, stages)
            case "RUN":
                places = [stage.mount(*mount) for mount in mounts]
                system = f"mount -t proc proc {stage.root}/proc; mount --rbind /dev {stage.root}/dev"
                run([system, *places, stage.inside(["sh", "-ec", re.sub(r"--mount=\S+\s+", "", rest)])])
            case "ENTRYPOINT" | "CMD":
                stage.words[name] = json.loads(rest)
            case "HEALTHCHECK":
                stage.words[name] = json.loads(rest.partition("CMD ")[2])
            case "USER" | "STOPSIGNAL":
                stage.words[name] = [rest]
            case "EXPOSE":
                pass
            case _:
                raise SystemExit(f"Dockerfile: tests/container.py cannot carry out {name}.")
    return stage


def serve(image: Stage, work: Path, index: Path, model: Path) -> None:
    """Start the image's command as compose.yaml does, on a read-only root without a network, and query it."""
    keys = work / "keys"
    keys.write_text(KEY + "\n", encoding="utf-8")
    (user,) = image.words["USER"]
    keys.chmod(0o600)
    os.chown(keys, *map(int, user.split(":")))
    secret = f"/run/secrets/{SERVICE['secrets'][0]['source']}"
    run(
        [
            image.mount(image.root, "/", "bind"),
            image.mount(image.root / "cache", "/cache", "bind"),
            image.mount(index, "/index"),
            image.mount(model, "/model"),
            image.mount(keys, secret),
            f"mount -t tmpfs tmpfs {image.root}/tmp",  # noqa: S108
            f"mount -t proc proc {image.root}/proc",
            f"mount --rbind /dev {image.root}/dev; mount -o remount,bind,ro {image.root}",
            SERVE.format(
                server=image.inside([*image.words["ENTRYPOINT"], *image.words["CMD"]], user=user),
                check=image.inside(image.words["HEALTHCHECK"], user=user),
                signal=image.words["STOPSIGNAL"][0].removeprefix("SIG"),
                patience=300,
                key=KEY,
                query=json.dumps({"query": "walk a directory tree", "k": 1}),
            ),
        ],
        "--net",
    )


def main(base: str, work: str, index: str, model: str, *build_mounts: str) -> None:
    """Build, print the size, serve."""
    config, folders = build_mounts[:1], build_mounts[1:]
    mounts = [(Path(path), "/etc/pip.conf") for path in config] + [(Path(path), path) for path in folders]
    image = build(Path(base), Path(work).absolute(), mounts)
    subprocess.run(["du", "-sm", image.root / "opt/isotrope", image.root], check=True)
    serve(image, Path(work).absolute(), Path(index), Path(model))


if __name__ == "__main__":
    main(*sys.argv[1:])
