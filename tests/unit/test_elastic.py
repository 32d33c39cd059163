"""`rltuned elastic` as a job runs it: one file, a real program, a stand-in for scontrol that notes what it is asked."""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rltuned.job import elastic as module

FILE = Path(module.__file__)
JOB = 4711
COUNTS = 'n=$(cat runs 2>/dev/null || echo 0); n=$((n + 1)); echo $n > runs; echo "$SLURM_NNODES" >> sizes'
"""Beginning of a program that counts how often it is started, and notes on how many nodes."""
SAVES = "while [ ! -e $RLTUNED_ELASTIC/checkpoint ]; do sleep 0.02; done; touch $RLTUNED_ELASTIC/saved; exit 0"
"""Its end, where it saves as soon as it is asked."""


class Job:
    """A batch job in a directory of its own."""

    def __init__(self, place, nodes=3):
        self.place, self.nodes = place, nodes
        self.records = place / "records"
        (self.records / "elastic").mkdir(parents=True)
        self.registration = self.records / "elastic" / f"{os.geteuid()}.{JOB}"
        (self.records / str(os.geteuid())).mkdir()
        (place / "bin").mkdir()
        self.slurm()

    def slurm(self, requeue=0, update=0):
        """What scontrol does: its exit codes."""
        script = f"""#!/bin/sh
        echo "$@" >> {self.place}/asked
        case $1 in
            requeue) exit {requeue} ;;
            update) [ {update} = 0 ] || exit {update}
                echo "export SLURM_NNODES=${{3#NumNodes=}}" > slurm_job_{JOB}_resize.sh
                printf 'export SLURM_NODELIST="a b"\\nunset SLURM_NTASKS\\n' >> slurm_job_{JOB}_resize.sh
                printf 'export BASH_ENV=/evil\\nunset HOME\\nunset PATH\\n' >> slurm_job_{JOB}_resize.sh ;;
        esac
        """
        path = self.place / "bin" / "scontrol"
        path.write_text(script)
        path.chmod(0o755)

    def advise(self, advised, *, nodes=None, saves=0.5, left=1e6, age=0.0, job=JOB):
        told = {"job_id": job, "nodes": nodes or self.nodes, "advised": advised, "saves": saves, "left": left}
        record = {"version": 1, "time": time.time() - age, "interval": 60.0, "elastic": [told]}
        path = self.records / str(os.geteuid()) / "jobs.json"
        path.with_suffix(".new").write_text(json.dumps(record))
        path.with_suffix(".new").rename(path)

    def start(self, program, *options, least=1, most=4, every=0.2, env=None):
        words = ["--least", str(least), "--most", str(most), "--every", str(every), "--records", str(self.records)]
        setting = {
            "PATH": f"{self.place}/bin:{os.environ['PATH']}",
            "SLURM_JOB_ID": str(JOB),
            "SLURM_JOB_NUM_NODES": str(self.nodes),
            "SLURM_NNODES": str(self.nodes),
            "SLURM_NTASKS": str(self.nodes),
        } | (env or {})
        command = [sys.executable, "-I", "-S", str(FILE), *words, *options, "--", "sh", "-c", program]
        with (self.place / "said").open("w") as said:
            return subprocess.Popen(command, cwd=self.place, env=setting, stderr=said)

    def run(self, program, *options, **how):
        """Exit code, and what the wrapper says."""
        code = self.start(program, *options, **how).wait(timeout=60)
        return code, (self.place / "said").read_text()

    def lines(self, name):
        path = self.place / name
        return path.read_text().splitlines() if path.exists() else []

    @property
    def files(self):
        return self.place / f".rltuned-elastic-{JOB}"


@pytest.fixture(autouse=True)
def _interruptible():
    """A shell that starts the tests in the background has them ignore SIGINT, and what they start would, too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


def wait_for(condition, what):
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < 30, what
        time.sleep(0.02)


def test_the_file_needs_the_standard_library_of_python_3_8_and_nothing_else():
    tree = ast.parse(FILE.read_text(), feature_version=(3, 8))
    names = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names
    done = subprocess.run([sys.executable, "-I", "-S", str(FILE), "--help"], capture_output=True, text=True, check=True)
    assert "--checkpoint-signal" in done.stdout


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"env": {"SLURM_JOB_ID": ""}}, "this is no batch script"),
        ({"env": {"SLURM_STEP_ID": "0"}}, "this is no batch script"),
        ({"env": {"SLURM_ARRAY_JOB_ID": "5"}}, "arrays"),
        ({"most": 1}, "there is no range"),
    ],
)
def test_where_nothing_can_be_resized_the_program_takes_the_place_of_the_wrapper(job, how, why):
    started = job.start('echo $$ > pid; echo "${RLTUNED_ELASTIC:-none}" > told; exit 6', **how)
    assert (started.wait(timeout=60), job.lines("pid"), job.lines("told")) == (6, [str(started.pid)], ["none"])
    assert why in (job.place / "said").read_text()
    assert not job.files.exists()


def test_a_wrong_signal_or_a_directory_that_cannot_be_made_stops_no_program(job):
    code, said = job.run("exit 6", "--checkpoint-signal", "NONE")
    assert (code, "there is no signal NONE; the program runs" in said) == (6, True)
    job.files.write_text("in the way")
    code, said = job.run("exit 6")
    assert (code, "exists" in said) == (6, True)


@pytest.mark.parametrize("made", ["a link", "of somebody else", "open to others"])
def test_a_directory_that_somebody_else_may_have_made_is_not_used(job, made):
    theirs = job.place / "theirs" if made == "a link" else job.files
    theirs.mkdir(mode=0o700)
    for name in ("checkpoint", "saved", "notes.json"):
        (theirs / name).write_text("precious")
    if made == "a link":
        job.files.symlink_to(theirs)
    elif made == "open to others":
        theirs.chmod(0o770)
    elif os.geteuid():
        pytest.skip("only root can give a directory away")
    else:
        os.chown(theirs, 64501, 64501)
    code, said = job.run('[ -z "$RLTUNED_ELASTIC" ] && exit 6')
    assert (code, "is not this user's alone; the program runs as it is" in said) == (6, True)
    assert sorted(path.name for path in theirs.iterdir()) == ["checkpoint", "notes.json", "saved"]


@pytest.mark.parametrize("there", ["a file of before", "a link"])
def test_only_what_scontrol_wrote_just_now_is_the_environment_of_the_smaller_job(job, there):
    job.advise(1)
    (job.place / "bin" / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {job.place}/asked\n')
    (job.place / "evil").write_text("export SLURM_NNODES=99\n")
    put = {"a file of before": "cp", "a link": "ln -s"}[there]
    with_it = f"{put} $PWD/evil $RLTUNED_ELASTIC/slurm_job_{JOB}_resize.sh; {SAVES}"
    started = job.start(f"{COUNTS}; [ $n = 2 ] && exit 0; {with_it}")
    wait_for(lambda: len(job.lines("asked")) == 2 or started.poll() is not None, "it requeues itself")
    started.send_signal(signal.SIGTERM)
    started.wait(timeout=30)
    assert (job.lines("sizes"), job.lines("asked")[1:]) == (["3"], [f"requeue {JOB}"])


@pytest.mark.parametrize(
    ("program", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("exec /nowhere", 127)]
)
def test_the_exit_code_is_the_programs_and_nothing_is_left_behind(job, program, code):
    assert job.run(program)[0] == code
    assert (job.files.exists(), [*(job.records / "elastic").iterdir()], job.lines("asked")) == (False, [], [])


def test_a_program_that_is_not_there_is_127():
    done = subprocess.run([sys.executable, str(FILE), "--", "/nowhere"], capture_output=True, text=True, check=False)
    assert (done.returncode, "No such file" in done.stderr) == (127, True)


def test_without_a_record_nothing_happens_but_the_job_says_what_it_could_do(job):
    code, said = job.run(
        f"cat {job.registration} > registered; sleep 0.7; [ -e $RLTUNED_ELASTIC/checkpoint ] || exit 5"
    )
    assert (code, said) == (5, "")
    assert json.loads(job.lines("registered")[0]) == {"version": 1, "least": 1, "most": 4, "cost": 240.0}


def test_what_it_says_can_be_read_by_the_daemon_and_goes_through_no_link_of_others(job):
    theirs, registration = job.place / "precious", job.registration
    theirs.write_text("mine")
    registration.symlink_to(theirs)
    mask = os.umask(0o077)
    try:
        assert job.run(f"stat -c %a {registration} > mode; [ ! -L {registration} ]")[0] == 0
    finally:
        os.umask(mask)
    assert (theirs.read_text(), job.lines("mode")) == ("mine", ["644"])


def test_a_registration_is_written_through_no_link_that_somebody_has_put_in_its_way(job):
    theirs, options = job.place / "precious", {"least": 1, "most": 4}
    theirs.write_text("mine")
    job.registration.with_name(f".{job.registration.name}.{os.getpid()}").symlink_to(theirs)
    module._Job(JOB, ["true"], options, job.records, job.files)._register()
    assert theirs.read_text() == "mine"


@pytest.mark.parametrize(
    "how",
    [
        {"advised": 4, "age": 400.0},
        {"advised": 4, "age": -400.0},
        {"advised": 4, "nodes": 2},
        {"advised": 4, "job": JOB + 1},
        {"advised": 9, "saves": 0.001, "left": 2.3e5},
        {"advised": 1, "left": 50.0},
        {"advised": 3},
    ],
    ids=["old", "of the future", "of another size", "of another job", "not worth it", "nearly over", "the same"],
)
def test_what_does_not_pay_or_does_not_hold_any_more_asks_for_nothing(job, how):
    job.advise(**how)
    code, said = job.run("sleep 0.7; [ -e $RLTUNED_ELASTIC/checkpoint ] || exit 5")
    assert (code, said, job.lines("asked")) == (5, "", [])


def test_a_record_that_is_no_record_asks_for_nothing(job):
    advice = '{"job_id": %d, "nodes": 3, "advised": %s, "saves": 1, "left": 1}'
    endless = [
        f'{{"time": {time.time()}, "interval": 60, "elastic": [{advice % (JOB, of)}]}}' for of in ("1e999", "NaN")
    ]
    odd = "", "[]", "{}", '{"time": "x"}', '{"time": 1, "interval": 60, "elastic": [3]}', "\0", "[" * 100_000
    for text in (*odd, *endless):
        (job.records / str(os.geteuid()) / "jobs.json").write_text(text)
        assert module.advice_of(job.records, JOB, 3) == (3, 0.0, 0.0)


def test_a_job_that_gives_nodes_back_goes_on_at_once_in_the_environment_of_the_smaller_one(job):
    job.advise(1, saves=-1.5)
    code, said = job.run(
        f'{COUNTS}; echo "${{SLURM_NTASKS:-none}} $SLURM_NODELIST ${{BASH_ENV:-none}} $HOME" >> more; '
        f"[ $n = 2 ] && exit 7; {SAVES}",
        env={"HOME": "here"},
    )
    assert code == 7
    assert job.lines("asked") == [f"update JobId={JOB} NumNodes=1"]
    assert (job.lines("sizes"), job.lines("more")) == (["3", "1"], ["3  none here", "none a b none here"])
    assert "1 instead of 3 nodes are advised" in said
    assert "2 of 3 nodes are given back" in said


def test_a_job_that_gets_more_nodes_requeues_itself_and_measures_what_that_takes(job):
    job.advise(4)
    started = job.start(f"{COUNTS}; sleep 0.1; touch $RLTUNED_ELASTIC/ready; {SAVES}")
    wait_for(lambda: job.lines("asked") == [f"requeue {JOB}"], "it requeues itself")
    time.sleep(0.3)
    assert started.poll() is None, "the batch script must not go on before Slurm ends it"
    started.send_signal(signal.SIGTERM)
    assert started.wait(timeout=30) == 85
    notes = json.loads((job.files / "notes.json").read_text())
    assert notes["restarts"] == 1
    assert 0.0 < notes["startup"] < 5.0
    notes["left"] -= 1000.0
    (job.files / "notes.json").write_text(json.dumps(notes))
    job.nodes = 4
    assert job.run(f"cat {job.registration} > registered; {COUNTS}; exit 9")[0] == 9
    assert 1000.0 < json.loads(job.lines("registered")[0])["cost"] < 1100.0
    assert (job.lines("sizes"), job.files.exists()) == (["3", "4"], False)


def test_where_slurm_lets_no_job_shrink_a_requeue_gives_the_nodes_back(job):
    job.slurm(update=1)
    job.advise(1)
    started = job.start(SAVES)
    wait_for(lambda: len(job.lines("asked")) == 2, "it requeues itself")
    started.send_signal(signal.SIGTERM)
    assert (started.wait(timeout=30), job.lines("asked")[1]) == (85, f"requeue {JOB}")


def test_a_job_that_slurm_does_not_requeue_goes_on_and_is_not_asked_again(job):
    job.slurm(requeue=1)
    job.advise(4)
    code, said = job.run(
        f"{COUNTS}; [ $n = 2 ] && sleep 0.7 && [ ! -e $RLTUNED_ELASTIC/checkpoint ] && exit 5; {SAVES}"
    )
    assert (code, job.lines("sizes"), job.lines("asked")) == (5, ["3", "3"], [f"requeue {JOB}"])
    assert "it goes on as it is" in said


def test_a_program_that_ends_by_itself_while_it_is_asked_has_ended(job):
    job.advise(1)
    assert job.run("while [ ! -e $RLTUNED_ELASTIC/checkpoint ]; do sleep 0.02; done; exit 0")[0] == 0
    assert job.lines("asked") == []


def test_an_advice_that_is_withdrawn_asks_for_nothing_any_more(job):
    job.advise(1)
    started = job.start("while sleep 0.02; do [ -e stop ] && exit 4; done")
    wait_for((job.files / "checkpoint").exists, "it is asked")
    job.advise(3)
    wait_for(lambda: not (job.files / "checkpoint").exists(), "it is not asked any more")
    (job.place / "stop").touch()
    assert (started.wait(timeout=30), job.lines("asked")) == (4, [])


def test_a_signal_asks_too_and_exit_code_85_answers(job):
    job.advise(2)
    handler = f"{COUNTS}; [ $n = 2 ] && exit 0; trap 'exit 85' USR1; while :; do sleep 0.02; done"
    assert job.run(handler, "--checkpoint-signal", "USR1")[0] == 0
    assert (job.lines("sizes"), job.lines("asked")) == (["3", "2"], [f"update JobId={JOB} NumNodes=2"])


def test_one_that_always_wants_to_go_on_is_restarted_so_many_times_only_and_never_resized_too_soon(job):
    job.advise(1)
    code, _ = job.run(f"{COUNTS}; exit 85", "--most-restarts", "3", every=60.0)
    assert (code, job.lines("runs"), job.lines("asked")) == (85, ["4"], [])
    code, _ = job.run(f"{COUNTS}; exit 85", "--most-restarts", "3", every=60.0, env={"SLURM_RESTART_COUNT": "3"})
    assert (code, job.lines("runs")) == (85, ["5"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2, signal.SIGINT])
def test_a_signal_reaches_the_program_whose_end_is_then_the_end(job, number):
    job.advise(1)
    name = number.name.removeprefix("SIG")
    loop = "trap 'touch $RLTUNED_ELASTIC/saved; exit 0' %s; touch up; while :; do sleep 0.02; done"
    started = job.start(loop % name, every=60.0)
    wait_for((job.place / "up").exists, "it runs")
    started.send_signal(number)
    assert (started.wait(timeout=30), job.lines("asked"), job.files.exists()) == (0, [], False)


def test_after_a_signal_the_program_is_not_asked(job):
    started = job.start("trap 'touch got' USR1; touch up; while [ ! -e stop ]; do sleep 0.02; done; exit 6")
    wait_for((job.place / "up").exists, "it runs")
    started.send_signal(signal.SIGUSR1)
    wait_for((job.place / "got").exists, "it is passed on")
    job.advise(1)
    time.sleep(0.7)
    assert not (job.files / "checkpoint").exists()
    (job.place / "stop").touch()
    assert started.wait(timeout=30) == 6


def test_a_program_without_a_handler_dies_of_the_signal(job):
    started = job.start("touch up; exec sleep 60", every=60.0)
    wait_for((job.place / "up").exists, "it runs")
    started.send_signal(signal.SIGTERM)
    assert started.wait(timeout=30) == 128 + signal.SIGTERM


def test_the_command_of_rltuned_is_the_same_and_takes_the_directory_from_the_configuration(job):
    config = job.place / "config.toml"
    job.advise(1)
    start = "from rltuned.cli.main import main; main()"
    here = {"PATH": f"{job.place}/bin:{os.environ['PATH']}", "SLURM_JOB_ID": str(JOB), "SLURM_JOB_NUM_NODES": "3"}

    def run(program):
        words = ["elastic", "--config", str(config), "--most", "4", "--every", "0.2", "sh", "-c", program]
        return subprocess.run(
            [sys.executable, "-c", start, *words],
            cwd=job.place,
            env=os.environ | here,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    config.write_text(f'[users]\ndirectory = "{job.records}"\n')
    done = run(f"{COUNTS}; [ $n = 2 ] && exit 7; {SAVES}")
    assert (done.returncode, job.lines("runs"), job.lines("asked")) == (7, ["2"], [f"update JobId={JOB} NumNodes=1"]), (
        done.stderr
    )
    config.write_text("not toml")
    done = run("exit 7")
    assert (done.returncode, "the program runs as it is" in done.stderr) == (7, True)
