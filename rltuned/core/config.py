"""The configuration: its schema with defaults and meaning, and how file, environment and flags become one value.

Precedence, lowest first: built-in default, ``/etc/rltuned/config.toml``, ``RLTUNED_SECTION__KEY`` in the environment,
command-line flags. Unknown keys and bad values are errors that name the source, the key and, for a file, the line.

This module reads no file and no environment itself: both are passed in. It imports nothing of rltuned but `errors` and
the objective, so every layer may use the sections as its settings.
"""

import difflib
import enum
import ipaddress
import json
import posixpath
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from rltuned.core.errors import ConfigError
from rltuned.core.objective import DEFAULT, Objective

MODEL: Final = "model"
AUTO: Final = "auto"
"""`policy.name`, where it is no plain rule: the model; what the gate's verdict has chosen."""
DEFAULT_MODEL: Final = "general"
"""The shipped model that is used unless another one is named."""
DEFAULT_SHARE: Final = 0.1
"""`lend.share` until the site's own replay shows that more harms nobody."""
DEFAULT_PATH: Final = Path("/etc/rltuned/config.toml")
ENV_PREFIX: Final = "RLTUNED_"


class Stage(enum.StrEnum):
    """Staged autonomy: how much of the plan reaches Slurm."""

    OBSERVE = "observe"
    """Read and report only; no plan is made."""
    SHADOW = "shadow"
    """Plan, record, measure; write nothing (what --dry-run forces)."""
    CANARY = "canary"
    """Write only for the partitions of `scope.canary`, or that part of the jobs."""
    ACTIVE = "active"
    """Write for every job in scope."""


class PlacementApply(enum.StrEnum):
    """How a placement decision reaches Slurm."""

    OFF = "off"
    OVERSUBSCRIBE = "oversubscribe"
    """Spread = OverSubscribe=NO on a job that starts now on an idle node; pack = leave alone."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        default = cls.model_fields[info.field_name or ""].default
        if isinstance(value, bool) and isinstance(default, int | float) and not isinstance(default, bool):
            msg = f"a number is wanted, not {str(value).lower()}"
            raise ValueError(msg)  # noqa: TRY004 - pydantic names the key of a ValueError only
        return value


Seconds = Annotated[float, Field(gt=0)]
Names = tuple[Annotated[str, Field(min_length=1)], ...]


def _absolute(path: Path) -> Path:
    """The daemon's working directory is not that of who wrote the file."""
    if not path.is_absolute() or "\0" in str(path):
        msg = "an absolute path is wanted, one that begins with /"
        raise ValueError(msg)
    return path


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
# TOML has no null, and an empty path would silently mean the working directory.
OptionalPath = Annotated[AbsolutePath | None, BeforeValidator(lambda value: None if value == "" else value)]


def _objective(value: Any) -> Objective:
    return value if isinstance(value, Objective) else Objective.parse(str(value))


_LABEL: Final = "(?!-)[A-Za-z0-9-]{1,63}(?<!-)"
_LISTEN: Final = re.compile(
    rf"(?:\[(?P<six>[^]]+)\]|(?P<four>[0-9.]+)|(?=.{{1,253}}:)(?P<name>{_LABEL}(\.{_LABEL})*\.?)):(?P<port>[0-9]{{1,5}})"
)


def _listen(text: str) -> str:
    """Where to listen, as programs of Prometheus take it; "": nowhere. Whether a name exists is not asked."""
    found = _LISTEN.fullmatch(text)
    try:
        right = found is not None and int(found["port"]) <= 65535
        if found is not None and not found["name"]:
            ipaddress.ip_address(found["six"] or found["four"])
    except ValueError:  # 300.1.1.1 is no name, either
        right = False
    if text and not right:
        msg = 'address and port are wanted: "127.0.0.1:9815", "[::1]:9815", "ctl.example.org:9815"; "0.0.0.0" is all'
        raise ValueError(msg)
    return text


class SlurmSection(_Section):
    """How Slurm is reached."""

    backend: Literal["cli", "pyslurm"] = "cli"
    """How values are written: `cli` (scontrol; every release) or `pyslurm` (Slurm 25.11, needs the extra [pyslurm])."""
    bin_dir: AbsolutePath = Path("/usr/bin")
    """Directory of squeue, scontrol, sprio, sdiag, sacctmgr, sacct. Absolute, so that PATH cannot change what is
    run."""
    conf: OptionalPath = None
    """SLURM_CONF for the commands; "": Slurm's own default."""
    timeout: Annotated[float, Field(gt=0, le=300)] = 20.0
    """Seconds after which a Slurm command and everything it started is killed."""


class CycleSection(_Section):
    """When the daemon works."""

    interval: Annotated[float, Field(ge=1, le=3600)] = 60.0
    """Seconds from one cycle to the next, in the mean: each wait is half of it to one and a half times as long, so that
    nobody knows when jobs are read."""
    stage: Stage = Stage.SHADOW
    """observe, shadow, canary or active. A new installation starts in shadow: look first, then let it write."""


class PolicySection(_Section):
    """Who ranks the jobs."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")] = "model"
    """`model`, or a plain rule by name: fifo, sjf, saf, wfp3, unicep, f1; multifactor: leave Slurm's order alone;
    auto: what `rltuned gate` has found to be best here, and Slurm's order until it has. It is in verdict.json: in
    state.directory, or beside a model of the model store."""
    model: str = DEFAULT_MODEL
    """Name of a shipped model, or the absolute path of a model's manifest (.json)."""
    objective: Annotated[Objective, PlainValidator(_objective), PlainSerializer(str)] = DEFAULT
    """What the site wants, for the model: weights of the mean wait, the slowdown, the tail of the
    waits and the GPUs that idle while a job waits. Only their proportions count."""


class EstimatesSection(_Section):
    """How long jobs will run, as far as the policy is concerned. Slurm's backfill always goes by the time limits."""

    source: Literal["history", "limit"] = "history"
    """`history`: predicted from the site's own finished jobs (sacct), never above the limit; `limit`: the time
    limit."""
    days: Annotated[float, Field(gt=0, le=366)] = 30.0
    """Days of the past that are read at the start."""
    refresh: Annotated[float, Field(ge=1, le=86400)] = 600.0
    """Seconds from one look at the accounting to the next. A cycle never waits for it."""
    names: Literal["off", "hashed", "auto"] = "off"
    """`hashed`: predictions go by what jobs are called and where they were submitted, too, known only as keyed hashes
    (docs/estimates.md); `auto`: so where the verdict of `rltuned gate --names` says that it certainly helps."""


def _share(value: Any) -> Any:
    """One sentence for what is neither."""
    if value != "auto" and not (isinstance(value, int | float) and 0.0 <= value <= 1.0):
        msg = 'a number from 0 to 1 is wanted, or "auto"'
        raise ValueError(msg)
    return value


class LendSection(_Section):
    """A waiting job may be passed by jobs of others until it has lent them a part of its wait (docs/lending.md)."""

    share: Annotated[float | Literal["auto"], BeforeValidator(_share)] = DEFAULT_SHARE
    """Part of the time that it has waited, times its size, that a job may lend: 0 to 1. 0: only a user's own jobs pass
    each other. "auto": as the verdict of policy.name = "auto" has it, above 0.1 by a step a day; 0.1 without one."""
    most: Annotated[int, Field(ge=0, le=256)] = 16
    """Jobs that are ahead of others' at a time; of one user, half of them before others have their turn."""

    @property
    def part(self) -> float:
        """`share` as a number: the default, where no verdict has been asked for "auto"."""
        return DEFAULT_SHARE if isinstance(self.share, str) else self.share


def _canary(value: Any) -> Any:
    """One sentence for what is neither."""
    if isinstance(value, str):
        right = re.fullmatch("[0-9]{1,3}(\\.[0-9]+)? ?%", value) and 0.0 < float(value.rstrip(" %")) <= 100.0
    else:
        right = isinstance(value, list | tuple) and all(name and isinstance(name, str) for name in value)
    if not right:
        msg = 'partitions are wanted, as ["debug"], or a part of the jobs, as "10 %"'
        raise ValueError(msg)
    return value


class ScopeSection(_Section):
    """Whose jobs are managed. An empty list of includes means all; excludes win."""

    partitions: Names = ()
    exclude_partitions: Names = ()
    qos: Names = ()
    exclude_qos: Names = ()
    accounts: Names = ()
    exclude_accounts: Names = ()
    users: Names = ()
    exclude_users: Names = ()
    exclude_reservations: Names | Literal["all"] = "all"
    """Reservations whose jobs are left alone, or "all"."""
    canary: Annotated[Names | str, BeforeValidator(_canary)] = ()
    """What stage `canary` writes to: partitions, as ["debug"], or a part of all jobs (by a hash of the job id), as
    "10 %"."""

    @property
    def percent(self) -> float:
        """`canary` as a number, where it is no list of partitions."""
        return float(str(self.canary).rstrip(" %"))

    @model_validator(mode="after")
    def _not_in_and_out(self) -> "ScopeSection":
        for key in ("partitions", "qos", "accounts", "users"):
            if both := sorted(set(getattr(self, key)) & set(getattr(self, f"exclude_{key}"))):
                msg = f"{', '.join(both)}: in {key} and in exclude_{key}; take it out of one of them"
                raise ValueError(msg)
        canary = set(self.canary) if isinstance(self.canary, tuple) else set()
        lost = canary & set(self.exclude_partitions)
        lost |= canary - set(self.partitions) if self.partitions else set()
        if lost:
            msg = f"{', '.join(sorted(lost))}: in canary, and partitions or exclude_partitions leave it out"
            raise ValueError(msg)
        return self


class ForecastSection(_Section):
    """When each pending job starts (docs/start-times.md), by a process of its own."""

    enabled: Literal["auto", "off"] = "auto"
    """`auto`: said where Numba is installed (the extra [simulate]), in at most half a second of a cycle."""


class PlacementSection(_Section):
    """The integer program that says which jobs start alone on their nodes."""

    apply: PlacementApply = PlacementApply.OFF
    """`off` or `oversubscribe`."""


class WriteSection(_Section):
    """What may be written, and when not. rltuned uses three quarters of what slurmctld's RPC limiter allows."""

    per_cycle: Annotated[int, Field(ge=1)] = 5000
    """Most changes of one cycle."""
    max_server_threads: Annotated[int, Field(ge=1)] = 128
    """slurmctld server threads (sdiag) above which a cycle writes nothing."""
    max_agent_queue: Annotated[int, Field(ge=1)] = 500
    """slurmctld agent queue (sdiag) above which a cycle writes nothing."""
    give_back_after: Seconds = 900.0
    """Seconds for which Slurm answers but no plan could be carried out (answers that cannot be understood, slurmctld
    under load, a journal that cannot be written) after which everything is given back. The next plan starts anew."""


class StateSection(_Section):
    """Where the journal lives."""

    directory: AbsolutePath = Path("/var/lib/rltuned")
    """Journal, decision record, lock: on a local file system, for this host alone. systemd: StateDirectory."""
    mirror: OptionalPath = Path("/run/rltuned")
    """Second copy of the journal on another file system, so that a full or broken disk does not lose the way back.
    "": none."""
    decision_log: Annotated[float, Field(ge=0, le=1_048_576)] = 256.0
    """MiB that the decision log may take on disk (docs/good-for-us.md), 0: none. It keeps 35 days at most; decisions of
    a long queue are kept less often."""

    @model_validator(mode="after")
    def _two_places(self) -> "StateSection":
        if self.mirror is not None and posixpath.normpath(self.mirror) == posixpath.normpath(self.directory):
            msg = 'mirror is the same as directory: name one on another file system, or "" for none'
            raise ValueError(msg)
        return self


class MetricsSection(_Section):
    """Prometheus."""

    listen: Annotated[str, AfterValidator(_listen)] = "127.0.0.1:9815"
    """Address and port; "0.0.0.0:9815" or "[::]:9815" for all addresses, port 0 for any free one, which is logged. "":
    no metrics."""
    tls_cert: OptionalPath = None
    """Certificate (PEM, with the chain): HTTPS instead of HTTP. A new one takes a restart. "": none."""
    tls_key: OptionalPath = None
    """Its key (PEM, no password); "": in the same file."""
    tls_client_ca: OptionalPath = None
    """Authorities (PEM): only clients with a certificate of one of them are served. "": all."""

    @model_validator(mode="after")
    def _keys_need_a_certificate(self) -> "MetricsSection":
        for key in ("tls_key", "tls_client_ca"):
            if getattr(self, key) is not None and self.tls_cert is None:
                msg = f"{key} needs tls_cert"
                raise ValueError(msg)
        return self


class UsersSection(_Section):
    """What users may see of their own jobs (docs/lending.md). Off unless a directory is named. A restart is needed."""

    directory: OptionalPath = None
    """Directory, absolute, that belongs to the daemon's user and whose file system has POSIX access control lists: each
    user can read one file there. /run/rltuned-users for this host, a shared one for login nodes. "": none."""


class LogSection(_Section):
    """Logging to stderr (the journal under systemd)."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "text", "json"] = "auto"
    """`auto`: text on a terminal, JSON otherwise."""


class Config(_Section):
    """All settings of rltuned."""

    slurm: SlurmSection = SlurmSection()
    cycle: CycleSection = CycleSection()
    policy: PolicySection = PolicySection()
    estimates: EstimatesSection = EstimatesSection()
    lend: LendSection = LendSection()
    scope: ScopeSection = ScopeSection()
    forecast: ForecastSection = ForecastSection()
    placement: PlacementSection = PlacementSection()
    write: WriteSection = WriteSection()
    state: StateSection = StateSection()
    metrics: MetricsSection = MetricsSection()
    users: UsersSection = UsersSection()
    log: LogSection = LogSection()

    @model_validator(mode="after")
    def _canary_has_a_target(self) -> "Config":
        if self.cycle.stage is Stage.CANARY and not self.scope.canary:
            msg = "stage 'canary' needs scope.canary: partitions, or a part of the jobs"
            raise ValueError(msg)
        return self


@dataclass(frozen=True, slots=True)
class Effective:
    """A configuration and where each value that is not a default came from."""

    config: Config
    sources: Mapping[str, str]
    """By dotted key: "config.toml:12", "RLTUNED_CYCLE__STAGE", "--dry-run". Absent: built-in default."""


def resolve(
    text: str | None,
    name: str,
    environment: Mapping[str, str],
    flags: Mapping[str, tuple[Any, str]],
) -> Effective:
    """Combine a TOML text (None: no file), the environment and flags (dotted key → value, flag name)."""
    given: list[tuple[str, str, Any, str]] = []  # section, key, value, where it stands
    lines, tree = dict[str, int](), dict[str, dict[str, Any]]()
    if text is not None:
        try:
            parsed = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # of a number that is too long, of lists without end
            raise ConfigError(f"{name}: not valid TOML: {error}") from error
        lines = _key_lines(text)
        for section, values in parsed.items():
            if not isinstance(values, dict):
                raise ConfigError(f"{name}:{lines.get(section, 1)}: '{section}' stands outside any [section]")
            tree[section] = {}
            at = {key: lines.get(f"{section}.{key}", lines.get(section, 1)) for key in values}
            given += [(section, key, value, f"{name}:{at[key]}") for key, value in values.items()]
    for variable in sorted(environment):
        if not variable.startswith(ENV_PREFIX):
            continue
        if "__" not in variable:
            _refuse_misspelt(variable)
        else:
            section, _, key = variable.removeprefix(ENV_PREFIX).lower().partition("__")
            given.append((section, key, _environment_value(environment[variable], section, key), variable))
    given += [(*dotted.split(".", 1), value, flag) for dotted, (value, flag) in flags.items()]
    for section, key, value, _ in given:
        tree.setdefault(section, {})[key] = value
    sources = {f"{section}.{key}": where for section, key, _, where in given}
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(item, name, sources, lines) for item in error.errors())) from error
    return Effective(config, sources)


def _refuse_misspelt(variable: str) -> None:
    """Raises ConfigError where a variable without ``__`` begins as a section does: it would be ignored in silence."""
    section, _, key = variable.removeprefix(ENV_PREFIX).lower().partition("_")
    if known := _keys(section):
        meant = did_you_mean(key, known, lambda found: f"{ENV_PREFIX}{section}__{found}".upper())
        raise ConfigError(f"{variable}: two underscores stand between section and key{meant}")


def _keys(section: str) -> Mapping[str, FieldInfo]:
    """The keys of a section; none where there is no such section."""
    field = Config.model_fields.get(section)
    return {} if field is None else type(field.default).model_fields


def did_you_mean(word: str, known: Iterable[str], shown: Callable[[str], str] = str) -> str:
    """The known word that is most like this one, as the end of a sentence; "" where none is near."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {shown(near[0])}?" if near else ""


def _environment_value(raw: str, section: str, key: str) -> Any:
    """Environment values are TOML values; what is not valid TOML is taken as text, lists may be comma-separated."""
    try:
        return tomllib.loads(f"v = {raw}")["v"]
    except (ValueError, RecursionError):
        pass
    field = _keys(section).get(key)
    if field is not None and any(get_origin(kind) is tuple for kind in (field.annotation, *get_args(field.annotation))):
        return raw if raw == "all" or raw.endswith("%") else [part.strip() for part in raw.split(",") if part.strip()]
    return raw


_TABLE = re.compile(r"^\s*\[\s*([A-Za-z0-9_.\-\"']+)\s*\]")
_KEY = re.compile(r"^\s*([A-Za-z0-9_\-]+|\"[^\"]*\"|'[^']*')\s*=")


def _key_lines(text: str) -> dict[str, int]:
    """Line of each section and key, for error messages; tomllib does not keep positions."""
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _TABLE.match(line):
            section = match.group(1).strip("\"'")
            lines.setdefault(section, number)
        elif match := _KEY.match(line):
            key = match.group(1).strip("\"'")
            lines.setdefault(f"{section}.{key}" if section else key, number)
    return lines


_LIMITER: Final = "rltuned uses three quarters of rl_bucket_size and rl_refill_rate in SlurmctldParameters"
_SUCCESSORS: Final = {
    "decide": "what jobs may lend is lend.share and lend.most (docs/lending.md); its guards have no successor",
    "rollout": "rollout.forecast is forecast.enabled (docs/start-times.md); rollouts are no longer made",
    "policy.verdict": "it is verdict.json in state.directory, or beside a model of the model store",
    "scope.canary_partitions": 'scope.canary has them: canary = ["debug"]',
    "scope.canary_percent": 'scope.canary has it: canary = "10 %"',
    "placement.top_k": "the placement looks at the first 64 jobs",
    "placement.time_limit": "the solver has half a second",
    "placement.gap": "the solver stops at 1 %",
    "metrics.enabled": 'metrics.listen = "" switches the metrics off',
    "metrics.address": "metrics.listen has address and port",
    "metrics.port": "metrics.listen has address and port",
    "write.burst": _LIMITER,
    "write.rate": _LIMITER,
    "write.breaker_failures": "three failed cycles in a row open the circuit breaker",
    "write.breaker_max_wait": "it is 15 minutes, or 16 cycles where that is less",
    "write.demote_after": "it is three alarms in a row",
}
"""What stands in the place of a section or key of before."""


def _explain(item: Any, name: str, sources: Mapping[str, str], lines: Mapping[str, int]) -> str:
    path = [str(part) for part in item["loc"]]
    dotted = ".".join(path[:2])
    section = path[0] if path else ""
    of_section = (place for key, place in sources.items() if key.startswith(f"{section}."))
    where = sources.get(dotted) or (f"{name}:{lines[section]}" if section in lines else next(of_section, name))
    if item["type"] == "extra_forbidden":
        what, known = ("key", _keys(section)) if len(path) > 1 else ("section", Config.model_fields)
        if dotted in _SUCCESSORS:
            return f"{where}: {what} '{dotted}' is gone, take it out: {_SUCCESSORS[dotted]}"
        return (
            f"{where}: unknown {what} '{dotted}'; known here: {', '.join(sorted(known))}{did_you_mean(path[-1], known)}"
        )
    message = str(item["msg"]).removeprefix("Value error, ")
    message = message.replace("Input should be a valid tuple", 'a list is wanted, as ["a", "b"]')
    if item["type"] in {"literal_error", "enum"} and isinstance(item["input"], str):
        message += did_you_mean(item["input"], re.findall(r"'([^']*)'", str(item["msg"])))
    value = "" if not path or isinstance(item["input"], dict | BaseModel) else f" (got {item['input']!r})"
    return f"{where}: {dotted or 'configuration'}: {message}{value}"


def sample() -> str:
    """The configuration file with every key, its meaning and its default, all commented out. TOML."""
    lines = [
        "# rltuned configuration: every key with its default. Uncomment what you change.",
        "# Check with `rltuned config check`, see what is in force with `rltuned config show`.",
        "# A running daemon takes changes over on SIGHUP (`systemctl reload rltuned`) after checking them.",
    ]
    for name, field in Config.model_fields.items():
        lines += ["", *(f"# {line}" for line in (field.default.__doc__ or "").strip().splitlines()), f"[{name}]"]
        for key, item in _keys(name).items():
            words = " ".join((item.description or "").split())
            wrapped = textwrap.wrap(words, 118, break_long_words=False, break_on_hyphens=False)
            lines += [f"# {line}" for line in wrapped]
            lines.append(f"# {key} = {toml_value(item.default)}")
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """A value as TOML writes it; None as the empty string, which `OptionalPath` reads as None."""
    match value:
        case bool():
            return "true" if value else "false"
        case enum.Enum():
            return f'"{value.value}"'
        case int() | float():
            return repr(value)
        case Objective():
            return f'"{value}"'
        case tuple() | list():
            return "[" + ", ".join(toml_value(item) for item in value) + "]"
        case None:
            return '""'
        case _:
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
