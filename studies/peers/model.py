"""The files of a peer: NAME.json, which says what it is and how it was made, and NAME.safetensors, its weights."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from rltuned.core.errors import ModelError
from rltuned.decide.rank.heuristics import by_name
from studies.peers.net import Net
from studies.peers.rlscheduler import RLScheduler
from studies.peers.schedinspector import SchedInspector

Peer = RLScheduler | SchedInspector


def weights_sha256(path: Path) -> str:
    """Digest of the weights, of the manifest at `path`."""
    return str(json.loads(path.read_text(encoding="utf-8"))["weights"]["sha256"])


def load(path: Path) -> Peer:
    """Read a peer.

    Raises:
        ModelError: the file is not that of a peer, or the weights are not those that it names.
    """
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        data = path.with_name(manifest["weights"]["file"]).read_bytes()
        if hashlib.sha256(data).hexdigest() != manifest["weights"]["sha256"]:
            raise ModelError(f"{path}: the weights are others than the manifest says")
        weights = dict(safetensors.numpy.load(data))
        for name, values in manifest["normalisers"].items():
            weights[f"input.{name}"] = np.asarray(values, dtype=np.float32)
        if manifest["kind"] == "rlscheduler":
            return RLScheduler(Net(manifest["name"], weights))
        return SchedInspector(Net(manifest["name"], weights), by_name(manifest["rule"]))
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{path}: no model of a peer: {error}") from error


def save(peer: Peer, directory: Path, training: Mapping[str, Any], metrics: Mapping[str, float]) -> Path:
    """Write a peer; returns the path of its manifest. The same peer makes the same bytes."""
    net = peer.net
    scales = {"mean": net.weights["input.mean"].tolist(), "scale": net.weights["input.scale"].tolist()}
    data = safetensors.numpy.save({name: w for name, w in net.weights.items() if not name.startswith("input.")})
    manifest = {
        "name": net.name,
        "kind": type(peer).__name__.lower(),
        "rule": None if isinstance(peer, RLScheduler) else peer.base.name,
        "normalisers": scales,
        "weights": {"file": f"{net.name}.safetensors", "sha256": hashlib.sha256(data).hexdigest()},
        "training": training,
        "metrics": metrics,
    }
    path = directory / f"{net.name}.json"
    directory.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".safetensors").write_bytes(data)
    path.write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
