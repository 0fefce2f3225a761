"""Machines of one run that differ say so; the run goes on."""

from __future__ import annotations

import pytest

from trainers.agreement import differences


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, []),
        ({"torch": "2.12.0"}, ["rank 9 has torch 2.12.0, rank 0 has 2.13.0: install the same on every machine"]),
        ({"python": "3.12.1"}, ["rank 9 has python 3.12.1, rank 0 has 3.11.7: install the same on every machine"]),
        ({"received_unix": 1060.0}, []),  # it came late, or its clock is ahead: nobody can tell
        (
            {"received_unix": 880.0},
            ["the clock of rank 9's machine is 120 s behind that of rank 0: timedatectl set-ntp true on both"],
        ),
        ({"sent_unix": None, "received_unix": 0.0}, []),
    ],
)
def test_differences_are_those_that_matter(changed, said):
    here = {"python": "3.11.7", "torch": "2.13.0", "rank": 9, "sent_unix": 1000.0, "received_unix": 1000.5}
    assert list(differences({"python": "3.11.7", "torch": "2.13.0", "preflight": "0.1.0"}, **here | changed)) == said
