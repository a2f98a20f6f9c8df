"""Four minutes of the fuzzer, and a test that its judge detects faults: in `make check`."""

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.fuzz.campaign import Laboratory, Search
from tests.fuzz.commands import Command
from tests.fuzz.damage import Damage
from tests.fuzz.strategies import Example, Families
from tests.fuzz.world import snapshot

pytestmark = pytest.mark.check
BUDGET = float(os.environ.get("ISOTROPE_FUZZ_SECONDS", "240"))
SEED = int(os.environ.get("ISOTROPE_FUZZ_SEED", "0"))
SHARES = {  # of the time, by family
    "unsealed": 1,
    "sealed": 2,
    "manifest": 2,
    "links": 1,
    "links while writing": 1,
    "inputs": 2,
    "caches": 0.5,
    "outputs": 1,
    "options": 2.5,
}
QUERY = Command(("query", "grown", "--json", "whales"))


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    made = Laboratory(tmp_path_factory.mktemp("fuzz"))
    yield made
    made.close()


@pytest.mark.parametrize("family", SHARES)
def test_nothing_hostile_breaks_a_command_or_touches_what_is_not_its_own(laboratory: Laboratory, family: str) -> None:
    search = Search(laboratory, SEED)
    search.run(Families(laboratory.world.before).all()[family], BUDGET * SHARES[family] / sum(SHARES.values()))
    print(f"\n{family}: {search.tried} examples from seed {SEED}")
    if search.found:
        pytest.fail(f"{family}, {search.tried} examples from seed {SEED}\n\n{search.report()}", pytrace=False)


def test_every_family_has_its_share_of_the_time(laboratory: Laboratory) -> None:
    assert Families(laboratory.world.before).all().keys() == SHARES.keys()


@pytest.mark.parametrize(
    ("sabotage", "cause"),
    [
        ("touch", "query changed bystander in home/ file"),
        ("unlink", "query removed bystander in home/ file"),
        ("chmod", "query changed bystander in home/ file"),
        ("raise", "traceback RuntimeError nowhere"),
        ("sleep", "hang nowhere"),
        ("spin", "hang nowhere"),
        ("abort", "signal 6 nowhere"),
        ("exit", "exit 7 query"),
        ("other index", "query created bystander in an index file"),
    ],
)
def test_the_judge_sees_what_a_broken_command_does(laboratory: Laboratory, sabotage: str, cause: str) -> None:
    found = laboratory.try_out(Example((), QUERY), sabotage, seconds=2)
    assert [fault.cause for fault in found] == [cause]


def test_the_judge_sees_a_file_written_over_although_it_was_named(laboratory: Laboratory) -> None:
    """A command that copies over its own output, which already exists, and over its input."""
    taken = Command(("query", "grown", "whales", "-o", "docs.txt"), outputs=("docs.txt",))
    assert [fault.cause for fault in laboratory.try_out(Example((), taken), "over docs.txt")] == [
        "query changed output in desk/ file"
    ]
    forced = Command((*taken.argv, "--force"), outputs=("docs.txt",))
    assert laboratory.try_out(Example((), forced), "over docs.txt") == []
    also_read = Command((*forced.argv, "--queries", "docs.txt"), outputs=("docs.txt",))
    assert laboratory.try_out(Example((), also_read), "over docs.txt")


def test_damage_is_done_and_the_world_is_mended_from_it(laboratory: Laboratory) -> None:
    world, work = laboratory.world, laboratory.world.root / "desk"
    for damage in (
        Damage("flip", "grown/parts/00000/embeddings.npy", 5, 1),
        Damage("cut", "docs.csv", 9),
        Damage("link", "grown/parts/00099", 0, "@/home/photos"),
        Damage("hard link", "grown/deleted/0003.npy", 0, "@/home/secrets.txt"),
        Damage("special", "grown/segments", 0, "pipe"),
        Damage("moved", "models", 0, "@/tmp/moved"),
        Damage("json", "grown/manifests/00000003.json", 8, ("set", float("nan")), True),
    ):
        damage.apply(work)
        assert snapshot(world.root) != world.before, damage
        world.mend()
        assert snapshot(world.root) == world.before, damage


def test_sealed_damage_passes_the_hashes(laboratory: Laboratory) -> None:
    """Sealed files are read, not rejected for their hash."""
    laboratory.world.mend()
    path = "grown/parts/00000/embeddings.npy"
    for sealed in (False, True):
        Damage("array", path, 0, "zeros", sealed).apply(laboratory.world.root / "desk")
        ending, _ = laboratory.run(Command(("verify", "grown")))
        assert ending.status == 1  # these are not the vectors that the segments hold
        assert (path in ending.stdout) is not sealed


def test_a_wrong_answer_of_a_damaged_index_is_seen(laboratory: Laboratory) -> None:
    laboratory.world.mend()
    ending, _ = laboratory.run(QUERY)
    assert laboratory.other_answers(QUERY, ending) == []
    assert laboratory.other_answers(QUERY, replace(ending, stdout=ending.stdout.replace("0.", "1."))) != []


def test_a_change_that_leaves_an_index_broken_is_seen(laboratory: Laboratory) -> None:
    delete = Command(("delete", "grown", "d2"), writes="grown")
    assert laboratory.try_out(Example((), delete)) == []
    cut = "cut grown/segments/0001-00.faiss"
    assert [fault.cause for fault in laboratory.try_out(Example((), delete), cut)] == [
        "delete left an index that verify rejects"
    ]
