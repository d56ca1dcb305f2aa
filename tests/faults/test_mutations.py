"""The list of mutations that the README gives is the list that is tried."""

import re
from pathlib import Path

from tests.faults.mutations import MUTATIONS, ROOT


def test_the_readme_lists_every_mutation() -> None:
    readme = (Path(__file__).parent / "README.md").read_text()
    listed = re.findall(r"^\| (.+?) \| `([^`]+\.py)` \| `", readme.partition("## Mutations tried")[2], re.MULTILINE)
    assert listed == [(mutation.name, mutation.file) for mutation in MUTATIONS]


def test_every_place_and_test_that_a_mutation_names_is_there() -> None:
    for mutation in MUTATIONS:
        assert (ROOT / mutation.file).read_text().count(mutation.old) == 1, mutation.name
        for path in mutation.tests.partition(" -k ")[0].split():
            assert (Path(__file__).parent / path).is_file(), path
