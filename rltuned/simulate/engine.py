"""`Simulation`: a simulated Slurm that is moved in time, looked at and changed from outside."""

from dataclasses import replace
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from rltuned.core.changes import JobState, OverSubscribe
from rltuned.core.errors import RltunedError
from rltuned.core.plain_tables import job_table
from rltuned.core.tables import Bools, Category, Codes, Floats, Ints, JobTable, NodeTable, Rows, Snapshot, columns_at
from rltuned.core.taken import taken_gpus
from rltuned.decide.expect.predictions import RunTimePredictions
from rltuned.decide.rank.protocol import QueueView
from rltuned.simulate import kernel as k
from rltuned.simulate.initial_state import heap_by_end, idle_cluster, plans, setup
from rltuned.simulate.loop_kernel import REFRESH, advance
from rltuned.simulate.requests import Requests, requests
from rltuned.simulate.shape import ClusterShape
from rltuned.simulate.values import Estimates, JobFate, SimulationResult, SimulationSettings
from rltuned.simulate.workload.jobs import Workload

RELEASE: Final = (24, 11)  # the Slurm release that a snapshot is of

_LARGEST: Final = float(np.finfo(np.float64).max)


class Ranker(Protocol):
    """Orders the pending jobs at each refresh."""

    @property
    def ages(self) -> bool:
        """Whether the order may change by time alone."""

    @property
    def at_once(self) -> bool:
        """Whether a job is ranked when it is submitted, as by slurmctld itself, not at the next refresh."""

    def fixed(self, simulation: "Simulation") -> Floats | None:
        """(N,) keys of all jobs of the workload, where they never change. None: `keys` is called at each refresh."""

    def keys(self, simulation: "Simulation", rows: Rows) -> Floats:
        """(n,) finite, of pending jobs; smaller first, ties by submission."""


class Predictor(Protocol):
    """Estimates run times from the jobs that have ended so far."""

    def ended(self, rows: Rows, run_times: Floats, ends: Floats) -> None:
        """Take note of jobs that have ended since the last call; (n,) seconds that they ran, and when they ended."""

    def predict(self, rows: Rows) -> RunTimePredictions:
        """Of (n,) jobs; NaN: not known."""


class Simulation:
    """One cluster, one workload, from the first submission on. docs/simulator.md says what happens.

    Rows are rows of the workload. Times are seconds on the workload's clock.
    """

    def __init__(
        self,
        shape: ClusterShape,
        jobs: Workload,
        estimates: Estimates,
        settings: SimulationSettings | None = None,
        predictor: Predictor | None = None,
        asked: Requests | None = None,
    ) -> None:
        """`jobs` are in order of submission. `predictor` estimates r of the pending jobs at each refresh, as the daemon
        does; r of `estimates` is changed in place. `asked`: `requests(shape, jobs, estimates.time_limit)`, where the
        caller has it (windows of one trace). Raises RltunedError: estimates of another length, or that are no times.
        """
        if not len(estimates.time_limit) == len(estimates.run_time) == len(jobs):
            raise RltunedError(f"{len(jobs)} jobs, but {len(estimates.time_limit)} time limits")
        if len(jobs) and not (estimates.time_limit.min() >= 1.0 and estimates.run_time.min() >= 1.0):
            raise RltunedError("every time limit and every estimate must be at least one second")
        self.shape, self.jobs, self.estimates = shape, jobs, estimates
        self.settings = settings or SimulationSettings()
        self.asked = requests(shape, jobs, estimates.time_limit) if asked is None else asked
        self._predictor = predictor
        self._reported = np.zeros(len(jobs), dtype=np.bool_)
        """(N,) the predictor knows that the job has ended."""
        self._predicted = np.zeros(len(jobs), dtype=np.bool_)
        """(N,) it has estimated the job's run time from all that has ended."""
        self._predictions = RunTimePredictions(*np.full((len(RunTimePredictions._fields), len(jobs)), np.nan))
        """(N,) what it said last."""
        self._held: set[int] = set()
        self.submitted = jobs.submit_time
        """(N,) seconds; of a job that has requeued itself, when it did. Not to be written."""
        self.usage_since = np.inf
        """Seconds since when what ran counts for fair share, beside all that runs under its first calculation."""
        self.ranged: Bools = self.asked.per_node & (self.asked.most_nodes > self.asked.nodes)
        """(N,) jobs with a range of nodes."""
        self.earlier: list[tuple[float, ...]] = []
        """Runs of jobs that have requeued themselves: row, submission, start, end, GPUs."""
        self.state = idle_cluster(shape, jobs, estimates, self.asked, self.settings)
        self.setup = setup(self.settings)
        """Of the kernel, like `state`: for this package only."""

    # --- moving

    def run(self, ranker: Ranker, until: float = np.inf) -> None:
        """Advance to `until`, events at it included, or until nothing can happen any more."""
        fixed = None if self._predictor is not None else ranker.fixed(self)
        if fixed is not None:
            self.state.jobs["fixed"] = np.clip(fixed, -_LARGEST, _LARGEST)
        ranking = k.Ranking(fixed=fixed is not None, ages=ranker.ages, at_once=ranker.at_once)
        while advance(self.state, self.setup, ranking, float(until)) == REFRESH:
            rows = self.pending
            if self._predictor is not None:
                self._predict(self._predictor, rows)
            keys = ranker.keys(self, rows)
            self.state.clock[k.REFRESH_DUE] = np.inf  # what a ranker changes is no reason to ask it again
            if self._order(rows, np.where(np.isnan(keys), _LARGEST, keys)):
                k.something_changed(self.state, self.setup)

    def _order(self, rows: Rows, keys: Floats) -> bool:
        """Give some pending jobs new keys, smaller first. Returns whether that changes the order of the queue."""
        s, n = self.state, int(self.state.counts[k.QUEUED])
        s.jobs["key"][rows] = np.clip(keys, -_LARGEST, _LARGEST)
        queue = s.queue[:n]
        key, tier = s.jobs["key"][queue], s.jobs["tier"][queue]
        s.counts[k.UNRANKED] = int((key == np.inf).sum())
        # The queue is nearly in order, and a stable sort (Timsort) of one column is fast at that.
        order = np.argsort(key, kind="stable")
        ties = key[order[1:]] == key[order[:-1]]
        if (tier != tier[:1]).any() or (ties & (queue[order[1:]] < queue[order[:-1]])).any():
            order = np.lexsort((queue, key, -tier))
        s.queue[:n] = queue[order]
        return bool((order != np.arange(n)).any())

    def _predict(self, predictor: Predictor, rows: Rows) -> None:
        s = self.state
        ended = self.ended[~self._reported[self.ended]]
        if len(ended):
            self._reported[ended] = True
            ended = ended[np.lexsort((ended, s.jobs["end"][ended]))]
            ends = s.jobs["end"][ended]
            predictor.ended(ended, ends - s.jobs["start"][ended], ends)
            self._predicted[:] = False
        fresh = np.sort(rows[~self._predicted[rows]])
        if len(fresh):
            self._predicted[fresh] = True
            predicted = predictor.predict(fresh)
            for kept, column in zip(self._predictions, predicted, strict=True):
                kept[fresh] = column
            known = ~np.isnan(predicted.expected)
            limit = self.estimates.time_limit[fresh[known]]
            self.estimates.run_time[fresh[known]] = np.clip(predicted.expected[known], 1.0, limit)

    def something_changed(self) -> None:
        """Slurm looks at the queue again, and the policy ranks it again."""
        s, now = self.state, float(self.state.clock[k.NOW])
        k.something_changed(s, self.setup)
        s.clock[k.REFRESH_DUE] = min(s.clock[k.REFRESH_DUE], k.next_multiple(now, self.settings.refresh))

    # --- looking

    @property
    def now(self) -> float:
        """Seconds on the workload's clock."""
        return float(self.state.clock[k.NOW])

    def predicted(self, rows: Rows) -> RunTimePredictions | None:
        """What the predictor said of these jobs at the last refresh; None: there is none."""
        return None if self._predictor is None else self._predictions.take(rows)

    @property
    def pending(self) -> Rows:
        """Jobs in the queue, in the order of their rank; held ones left out."""
        return self.state.queue[: self.state.counts[k.QUEUED]].astype(np.intp)

    @property
    def running(self) -> Rows:
        """Jobs that hold resources, in the order in which their limits end them."""
        return self.state.holding[: self.state.counts[k.HOLDING]].astype(np.intp)

    @property
    def fate(self) -> npt.NDArray[np.int8]:
        """(N,) `JobFate` now."""
        return self.state.jobs["fate"].astype(np.int8)

    @property
    def start(self) -> Floats:
        """(N,) seconds, NaN where not started; a view, not to be written."""
        return self.state.jobs["start"]

    @property
    def end(self) -> Floats:
        """(N,) seconds, of running jobs when they will end, NaN where not started; a view, not to be written."""
        return self.state.jobs["end"]

    @property
    def ended(self) -> Rows:
        """Jobs that have run and ended."""
        fate = self.state.jobs["fate"]
        return np.flatnonzero((fate == JobFate.COMPLETED) | (fate == JobFate.TIMEOUT))

    @property
    def free(self) -> Ints:
        """(M, 4) GPUs, CPUs, MiB of memory, MiB of disk that are free; a view, not to be written."""
        free: Ints = self.state.amount[k.NOW_FREE]
        return free

    @property
    def done(self) -> bool:
        """Whether no job waits (held ones aside), runs, or is still to be submitted."""
        s = self.state
        return not (s.counts[k.QUEUED] or s.counts[k.HOLDING] or s.counts[k.NEXT] < len(self.jobs))

    def nodes_of(self, row: int) -> npt.NDArray[np.int32]:
        """Nodes that a job runs on or ran on."""
        s = self.state
        return s.given_node[s.jobs["slot"][row] : s.jobs["slot"][row] + s.jobs["on"][row]].astype(np.int32)

    def allocations(self, rows: Rows | slice) -> tuple[Codes, Codes]:
        """(n+1,) row pointer and, one after the other, the nodes that each of these jobs runs on or ran on."""
        s = self.state
        slot, on = s.jobs["slot"][rows], s.jobs["on"][rows]
        ptr = np.concatenate(([0], np.cumsum(on))).astype(np.int32)
        index = np.arange(int(ptr[-1])) - np.repeat(ptr[:-1] - slot, on)
        return ptr, s.given_node[index].astype(np.int32)

    def view(self, rows: Rows) -> QueueView:
        """These jobs as a plain rule sees them; the earlier submission has the higher priority."""
        submit = self.submitted[rows]
        return QueueView(
            run_time=self.estimates.run_time[rows],
            time_limit=self.estimates.time_limit[rows],
            gpus=self.taken_gpus[rows],
            wait=np.maximum(self.now - submit, 0.0),
            submit=submit - (self.jobs.submit_time[0] if len(self.jobs) else 0.0),
            priority=-rows.astype(np.float64),
        )

    def result(self) -> SimulationResult:
        """What has become of the jobs so far."""
        s = self.state
        started = ~np.isnan(s.jobs["start"])
        ended = started & (s.jobs["fate"] != JobFate.RUNNING)
        ptr, nodes = self.allocations(slice(None))
        return SimulationResult(
            fate=s.jobs["fate"].astype(np.int8),
            start=s.jobs["start"].copy(),
            end=np.where(ended, s.jobs["end"], np.nan),
            rejected=dict(self.asked.rejected),
            node_ptr=ptr,
            node_idx=nodes,
            backfilled=s.jobs["backfilled"].astype(np.bool_),
            passes=int(s.counts[k.PASSES]),
            refreshes=int(s.counts[k.REFRESHES]),
        )

    @property
    def grown(self) -> Floats:
        """(N,) nodes of a range that the job has, or had at its end, over those that its amounts are for; else 1."""
        s = self.state
        nodes = np.where(np.isnan(s.jobs["start"]), s.jobs["least"], s.jobs["on"])
        return np.where(self.ranged, nodes / np.maximum(self.asked.nodes, 1), 1.0)

    def snapshot(self, epoch: float = 0.0, priority: Ints | None = None, site_factor: Ints | None = None) -> Snapshot:
        """The cluster as the daemon would read it now: running jobs, then pending ones in the order of their rank.

        Job ids are rows + 1. Held jobs are not shown. `epoch` is added to all times. `priority`: (N,) that Slurm alone
        gives; None: the earlier submission has the higher one. `site_factor`: (N,) what is added to it; None: nothing.
        """
        table = self.job_table(np.concatenate((self.running, self.pending)), epoch, priority, site_factor)
        return Snapshot(self.now + epoch, RELEASE, table, self.node_table(), self.shape.partitions)

    def job_table(
        self, rows: Rows, epoch: float = 0.0, priority: Ints | None = None, site_factor: Ints | None = None
    ) -> JobTable:
        """Of these running and pending jobs; the arguments are those of `snapshot`."""
        s = self.state
        ptr, nodes = self.allocations(rows)
        active = s.jobs["fate"][rows] == JobFate.RUNNING
        submit = self.submitted[rows] + epoch
        value = (len(self.jobs) - rows).astype(np.int64) if priority is None else priority[rows]
        factor = np.zeros(len(rows), dtype=np.int64) if site_factor is None else site_factor[rows]
        changing: dict[str, Any] = {
            "state": np.where(active, JobState.RUNNING, JobState.PENDING).astype(np.int8),
            "submit_time": submit,
            "eligible_time": submit,
            "start_time": np.where(active, s.jobs["start"][rows] + epoch, np.nan),
            "end_time": np.where(active, s.jobs["ends_by"][rows] + epoch, np.nan),
            "time_limit": self.estimates.time_limit[rows],
            "priority": value + factor,
            "site_factor": factor,
            "base": value,
            "base_least": value,
            "oversubscribe": Category(
                (s.jobs["alone"][rows] == k.ISOLATED).astype(np.int32), (OverSubscribe.OK.value, OverSubscribe.NO.value)
            ),
            "exclusive": np.asarray(s.jobs["alone"][rows] == k.WHOLE, dtype=np.bool_),
            "node_ptr": ptr,
            "node_idx": nodes,
        }
        if self.ranged.any():
            grown = self.grown[rows]
            for name in ("nodes", "gpus", "cpus", "mem"):
                column = getattr(self._unchanging, name)[rows]
                changing[name] = np.rint(column * grown).astype(column.dtype)
        return JobTable(**columns_at(self._unchanging, rows, changing), **changing)

    @cached_property
    def _unchanging(self) -> JobTable:
        """What Slurm would show of each job of the workload; what changes means nothing."""
        jobs, asked, normal = self.jobs, self.asked, len(self.jobs.qos.names)
        partition = np.maximum(asked.partition, 0).astype(np.int32)
        qos = np.where(jobs.qos.codes < 0, normal, jobs.qos.codes).astype(np.int32)
        return replace(
            job_table(len(jobs)),
            user=jobs.user,
            account=jobs.account,
            partition=Category(partition, tuple(each.name for each in self.shape.partitions)),
            qos=Category(qos, (*jobs.qos.names, "normal")),
            nodes=np.maximum(asked.nodes, 1).astype(np.int32),
            gpus=jobs.gpus,
            gpus_per_node=np.where(asked.per_node, asked.gpus, 0).astype(np.int32),
            gpu_type=Category(asked.gpu_type.astype(np.int32), self.shape.nodes.gpu_types),
            cpus=jobs.cpus,
            mem=jobs.mem,
            tmp=jobs.tmp,
        )

    @cached_property
    def taken_gpus(self) -> Floats:
        """(N,) GPUs that each job of the workload takes, as `observe` has them of one that waits."""
        shown = Snapshot(0.0, RELEASE, self._unchanging, self.shape.nodes, self.shape.partitions)
        return taken_gpus(shown, np.arange(len(self.jobs)))

    def node_table(self) -> NodeTable:
        """All nodes with what is taken of them, now."""
        s, nodes = self.state, self.shape.nodes
        used = s.amount[k.ROOM] - s.amount[k.NOW_FREE]
        # Which types they are of, the kernel does not count: those of the first column go first.
        before = np.cumsum(nodes.gpus, axis=1) - nodes.gpus
        taken = np.clip(used[:, k.GPU, None] - before, 0, nodes.gpus).astype(np.int32)
        return replace(
            nodes,
            gpus_alloc=taken,
            cpus_alloc=used[:, k.CPU].astype(np.int32),
            mem_alloc=used[:, 2].astype(np.float64),
            usable=s.nodes["usable"].astype(np.bool_),
        )

    # --- changes from outside, between two runs

    def set_keys(self, rows: Rows, keys: Floats) -> None:
        """Order these pending jobs by `keys` from now on; the others keep theirs."""
        if self._order(rows, keys):
            self.something_changed()

    def waited_since(self, submitted: Floats) -> None:
        """The first of the jobs, those that have been or are about to be submitted, were so at these times, seconds:
        their age counts from there.
        """
        self.submitted = np.concatenate((submitted, self.submitted[len(submitted) :]))
        self.usage_since = float(np.nanmin(self.start)) if np.isfinite(self.start).any() else np.inf
        self.state.jobs["submit"][: len(submitted)] = submitted

    def hold(self, row: int) -> None:
        """Take a pending job out of the queue."""
        if self._leave_queue(row):
            self._held.add(row)

    def release(self, row: int) -> None:
        """Put a held job back into the queue, unranked."""
        if row in self._held:
            self._held.remove(row)
            self.queue_again(row)

    def queue_again(self, row: int) -> None:
        """Put a job that waits into the queue, unranked."""
        self.state.jobs["key"][row] = np.inf
        self.state.counts[k.UNRANKED] += 1
        k.enqueue(self.state, row)
        self.something_changed()

    def cancel(self, row: int) -> None:
        """End a job that waits, is held, runs, or is still to be submitted. No effect on a job that has ended."""
        s = self.state
        if s.jobs["fate"][row] == JobFate.RUNNING:
            if s.jobs["end"][row] <= self.now:
                return
            self.stop(row)
            s.jobs["fate"][row] = JobFate.CANCELLED
        elif s.jobs["fate"][row] == JobFate.WAITING:
            self._leave_queue(row)
            self._held.discard(row)
            s.jobs["fate"][row] = JobFate.CANCELLED
        self.something_changed()

    def stop(self, row: int) -> None:
        """A running job ends now."""
        s = self.state
        s.jobs["end"][row] = self.now
        k.finish(s, self.setup, row)
        s.heap[:] = heap_by_end(s.jobs)

    def go_on(self, row: int, nodes: int, left: float) -> None:
        """A job that was stopped now goes on with the first of its nodes, and what is left of its time limit."""
        k.start_again(self.state, self.setup, row, nodes, left)
        self.something_changed()

    def _leave_queue(self, row: int) -> bool:
        s, n = self.state, int(self.state.counts[k.QUEUED])
        at = np.flatnonzero(s.queue[:n] == row)
        if not len(at):
            return False
        s.queue[at[0] : n - 1] = s.queue[at[0] + 1 : n]
        s.counts[k.QUEUED] = n - 1
        s.counts[k.UNRANKED] -= int(s.jobs["key"][row] == np.inf)
        self.something_changed()
        return True

    def set_isolated(self, row: int, *, isolated: bool) -> None:
        """OverSubscribe=NO, or the default again, of a job that has not started."""
        s = self.state
        if s.jobs["fate"][row] == JobFate.WAITING and s.jobs["alone"][row] != k.WHOLE:
            s.jobs["alone"][row] = k.ISOLATED if isolated else k.SHARED
            self.something_changed()

    def reconfigure(self, settings: SimulationSettings) -> None:
        """slurm.conf is changed and read again: `settings` count from now on."""
        self.settings = settings
        self.setup = setup(settings)
        s, n = self.state, len(self.jobs)
        self.state = s._replace(plans=plans(settings, s.plans.member, n, n, len(s.given)))
        self.something_changed()

    def set_usable(self, node: int, *, usable: bool) -> None:
        """Drain a node (what runs there goes on), or take it back."""
        self.state.nodes["usable"][node] = usable
        self.something_changed()
