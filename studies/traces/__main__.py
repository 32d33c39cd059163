"""``python -m studies.traces FILE OUT.csv[.gz]``: a published trace as the product's CSV."""

import argparse
from dataclasses import replace
from pathlib import Path

from rltuned.simulate.workload.write import write_csv
from studies.traces import FORMS, read

parser = argparse.ArgumentParser(prog="python -m studies.traces", description=__doc__)
parser.add_argument("file", type=Path)
parser.add_argument("out", type=Path)
parser.add_argument("--form", choices=FORMS, help="default: found out from the first line")
parser.add_argument("--job-table", type=Path, help="pai_job_table.csv: users and submissions of pai_task_table.csv")
parser.add_argument("--skip-bad", action="store_true", help="count lines that cannot be read and go on")

if __name__ == "__main__":
    given = parser.parse_args()
    jobs = read(given.file, form=given.form, job_table=given.job_table, skip_bad=given.skip_bad)
    # On the clock of the file, so that a part can be named by it.
    write_csv(replace(jobs, submit_time=jobs.submit_time + jobs.source.start), given.out)
