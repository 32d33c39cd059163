"""`rltuned restore` is the way out when everything else is broken: reading status and writing must not need NumPy."""

import subprocess
import sys
import textwrap

from unit.slurm.standin import job


def run(code, *arguments):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], capture_output=True, text=True, check=False
    )


def test_status_and_undo_work_where_numpy_cannot_be_imported(slurm):
    slurm.queue([job(7)], factors={7: 40})
    done = run(
        """
        import sys
        sys.modules["numpy"] = None  # importing it raises
        from pathlib import Path
        from rltuned.cluster.changes import Change, Field
        from rltuned.config import SlurmSection
        from rltuned.slurm.connect import open_reader, open_writer
        section = SlurmSection(bin_dir=Path(sys.argv[1]))
        reader, writer = open_reader(section), open_writer(section)
        reader.ping(); reader.facts()
        assert reader.status([7])[7].site_factor == 40
        writer.write([Change(7, 1, Field.SITE_FACTOR, 40, 0, 0)]); writer.release([7])
        assert not [name for name in sys.modules if name.split(".")[0] in {"scipy", "tensorflow", "swiglpk"}]
        """,
        slurm.bin_dir,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert slurm.stdin == "release 7\n"


def test_a_snapshot_does_need_it(slurm):
    done = run(
        """
        import sys
        sys.modules["numpy"] = None
        from pathlib import Path
        from rltuned.config import SlurmSection
        from rltuned.slurm.connect import open_reader
        open_reader(SlurmSection(bin_dir=Path(sys.argv[1]))).snapshot(1.0)
        """,
        slurm.bin_dir,
    )
    assert "import of numpy halted" in done.stderr
