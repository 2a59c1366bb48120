"""The tests of the cache would notice: some planted faults in every run, all of them in `make mutants`."""

from pathlib import Path

import pytest
from faults import FAULTS
from mutants import ROOT, catch, plant

SAMPLE = FAULTS[::15]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_still_be_planted(fault, tmp_path):
    source = ROOT / fault.file
    (tmp_path / fault.file).parent.mkdir()
    (tmp_path / fault.file).write_text(source.read_text())
    plant(fault, tmp_path)
    assert (tmp_path / fault.file).read_text() != source.read_text()


@pytest.mark.parametrize("fault", SAMPLE, ids=lambda fault: fault.name)
def test_a_planted_fault_is_caught(fault):
    caught = catch(fault)
    assert caught is not None, f"{fault.file}: {fault.line!r} may become {fault.instead!r} and no test minds"
    assert Path(ROOT, caught.partition("::")[0]).exists()
