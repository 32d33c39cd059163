"""The features once more, job by job and node by node, straight from docs/ranking.md: what the fast code must
equal."""

import math
from statistics import median

import numpy as np

from rltuned.core.changes import OverSubscribe
from rltuned.core.pools import job_pools
from rltuned.decide.see.features import FEATURES

DAYS_30 = 30 * 86400.0


def clip(value):
    return min(max(value, 0.0), 1.0)


def ratio(part, whole):
    if whole > 0:
        return part / whole
    return 1.0 if part > 0 else 0.0


def estimated_run_time(snapshot, row, estimates):
    known = [v for v in (snapshot.jobs.time_limit[row], estimates[row]) if not math.isnan(v)]
    r = min(known, default=math.inf)
    return max(r, 1.0) if math.isfinite(r) else 365 * 86400.0


def time_limit(snapshot, row):
    limit = snapshot.jobs.time_limit[row]
    return DAYS_30 if math.isnan(limit) else min(max(limit, 1.0), DAYS_30)


def expected_end(snapshot, row, estimates):
    jobs, now = snapshot.jobs, snapshot.time
    start = jobs.start_time[row]
    elapsed = max(now - start, 0.0) if not math.isnan(start) else 0.0
    ends = []
    if not math.isnan(estimates[row]):
        left = estimates[row] - elapsed
        ends.append(now + (left if left > 0 else elapsed))
    if not math.isnan(jobs.end_time[row]):
        ends.append(jobs.end_time[row])
    return min(ends, default=math.inf)


def of_type(snapshot, table, node, gpu_type):
    return int(table[node].sum()) if gpu_type < 0 else int(table[node, gpu_type])


def is_alone(snapshot, row):
    jobs, nodes = snapshot.jobs, snapshot.nodes
    partitions = [snapshot.partition_by_name.get(name) for name in jobs.partition.value(row).split(",")]
    exclusive = all(p is not None and p.oversubscribe is OverSubscribe.EXCLUSIVE for p in partitions)
    memory_counts = any(nodes.mem_alloc > 0) or not any(nodes.cpus_alloc > 0)
    return bool(jobs.exclusive[row]) or exclusive or (math.isnan(jobs.mem[row]) and memory_counts)


def has_whole_nodes(snapshot, row):
    return is_alone(snapshot, row) and snapshot.jobs.oversubscribe.value(row) not in {"USER", "MCS"}


def closed(snapshot):
    """Nodes that nobody may join."""
    jobs = snapshot.jobs
    return {node for row in range(len(jobs)) if has_whole_nodes(snapshot, row) for node in jobs.nodes_of(row).tolist()}


def taken(snapshot, row, capable, gpu_type):
    """GPUs that a pending job takes; `capable`: the nodes that could ever run it."""
    g = int(snapshot.jobs.gpus[row])
    if not has_whole_nodes(snapshot, row):
        return float(g)
    each = median([of_type(snapshot, snapshot.nodes.gpus, n, gpu_type) for n in capable] or [0])
    return max(g, max(int(snapshot.jobs.nodes[row]), math.ceil(g / max(each, 1))) * each)


def ways(snapshot, row, pool, gpu_type, shut):
    """Kinds of placement by trying: how many idle and how many shared nodes could carry a part of the job."""
    jobs, nodes = snapshot.jobs, snapshot.nodes
    count = max(int(jobs.nodes[row]), 1)
    g, per_node = int(jobs.gpus[row]), int(jobs.gpus_per_node[row])
    cpus, mem = int(jobs.cpus[row]), float(jobs.mem[row])
    alone = is_alone(snapshot, row)
    mem = 0.0 if math.isnan(mem) else mem
    part = per_node if per_node > 0 else math.ceil(g / count)
    idle = shared = 0
    pieces = 0
    for node in pool:
        if nodes.cpus_free[node] <= 0:
            continue
        free = nodes.gpus_free[node] * (node not in shut)
        f = int(free.max(initial=0)) if gpu_type < 0 else int(free[gpu_type])
        fits = (
            f >= part
            and nodes.cpus_free[node] >= math.ceil(cpus / count)
            and nodes.mem_free[node] >= mem / count * (1 - 1e-6)
            and nodes.tmp[node] >= jobs.tmp[row]
        )
        is_idle = bool(nodes.idle[node])
        idle += fits and is_idle
        shared += fits and not is_idle and not alone
        if g > 1 and (is_idle or not alone):
            by_cpu = math.floor(nodes.cpus_free[node] * g / max(cpus, 1) + 1e-3)
            by_mem = math.floor(nodes.mem_free[node] * g / mem + 1e-3) if mem > 0 else g
            pieces += max(min(f, g - 1, by_cpu, by_mem), 0)
    found = int(idle >= count) + int(shared >= count)
    if count > 1:
        found += int(idle > 0 and shared > 0 and idle + shared >= count)
    elif per_node == 0 and g > 1:
        found += int(pieces >= g)
    return found


def time_to_free(g, free, given_back, now):
    """Seconds until there are g GPUs, as running jobs give theirs back one after the other; 30 days: never."""
    if free >= g:
        return 0.0
    for end, gpus in sorted(given_back):
        free += gpus
        if free >= g - 1e-6:
            return min(max(end - now, 0.0), DAYS_30)
    return DAYS_30


def reference_features(snapshot, rows, estimates):
    pools = job_pools(snapshot, rows)
    jobs, nodes, now, shut = snapshot.jobs, snapshot.nodes, snapshot.time, closed(snapshot)
    out = np.zeros((len(rows), len(FEATURES)))
    for at, row in enumerate(rows):
        gpu_type = int(pools.gpu_type[pools.pool_of[at]])
        if gpu_type >= len(nodes.gpu_types):
            gpu_type = -1  # a type that no node has, named by a job of no GPUs
        pool = [n for n in np.flatnonzero(pools.nodes[pools.pool_of[at]]) if nodes.usable[n]]
        g = taken(snapshot, row, np.flatnonzero(pools.nodes[pools.pool_of[at]]), gpu_type)
        r = estimated_run_time(snapshot, row, estimates)
        eligible = jobs.eligible_time[row]
        w = 0.0 if math.isnan(eligible) else max(now - eligible, 0.0)
        total = sum(of_type(snapshot, nodes.gpus, n, gpu_type) for n in pool)
        frees = [of_type(snapshot, nodes.gpus_free, n, gpu_type) * (n not in shut) for n in pool]
        free = sum(frees)
        given_back = []
        for other in jobs.running:
            held = jobs.nodes_of(other)
            name = jobs.gpu_type.value(other)
            counts = gpu_type < 0 or name in {"", nodes.gpu_types[gpu_type]}
            end, share = expected_end(snapshot, other, estimates), jobs.gpus[other] / max(len(held), 1)
            if has_whole_nodes(snapshot, other):
                given_back += [(end, of_type(snapshot, nodes.gpus, n, gpu_type)) for n in held if n in pool]
            else:
                given_back += [(end, share) for n in held if counts and n in pool]
        later = free + sum(gpus for end, gpus in given_back if end <= now + r)
        kinds = ways(snapshot, row, pool, gpu_type, shut)
        gpu_share = ratio(g, total)
        cpus, mem = float(jobs.cpus[row]), float(jobs.mem[row])
        x = g / max(free, 0.5)
        largest = max((of_type(snapshot, nodes.gpus, n, gpu_type) for n in pool), default=0)
        values = {
            "requested_gpus": ratio(math.log2(1 + g), math.log2(1 + total)),
            "requested_time": math.log(1 + r) / math.log(1 + DAYS_30),
            "submit_time": math.log(1 + w) / math.log(1 + DAYS_30),
            "req_cpu": ratio(cpus, sum(nodes.cpus[n] for n in pool)) if cpus > 0 else gpu_share,
            "req_mem": ratio(mem, sum(nodes.mem[n] for n in pool)) if mem > 0 else gpu_share,
            "free_nodes": ratio(sum(bool(nodes.idle[n]) for n in pool), len(pool)),
            "can_schedule_now": float(kinds > 0),
            "num_ways_to_schedule": kinds / 3,
            "demand_supply_ratio": x / (1 + x),
            "job_size": ratio(math.log(1 + g * r), math.log(1 + max(total, 1) * DAYS_30)),
            "job_urgency": math.log(1 + w / max(r, 10.0)) / math.log(1 + DAYS_30 / 10),
            "future_availability": ((later - g) / max(total, 1) + 1) / 2,
            "requested_limit": math.log(1 + time_limit(snapshot, row)) / math.log(1 + DAYS_30),
            "time_to_free": math.log(1 + time_to_free(g, free, given_back, now)) / math.log(1 + DAYS_30),
            "fragmentation": 1 - sum(f * f for f in frees) / (free * largest) if free else 0.0,
        }
        out[at] = [clip(float(values[name])) for name in FEATURES]
    return out
