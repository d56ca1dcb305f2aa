"""The process settings: one table of environment variables, read and checked in one pass.

`Environment` is the table and the result at once: a field is a variable, with its kind, default, bounds and meaning.
`read` reports every bad variable together, and `docs/settings.md` is held against `SETTINGS` by a test.
"""

# ruff: noqa: RUF009 - the rows of the table are dataclass fields made by `_variable`
import contextlib
import hashlib
import hmac
import math
import os
import re
import secrets
import zoneinfo
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

MIB = 1024 * 1024


class BadEnvironment(ValueError):
    """Names every variable that cannot be used and what it may be, one a line. `problems` holds the lines."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("Pilotage cannot start with these settings:\n" + "\n".join(f"  {line}" for line in problems))
        self.problems = problems


class Kind(Protocol):
    @property
    def bounds(self) -> str:
        """What a value may be, in words."""
        ...

    def read(self, text: str) -> Any:
        """The value of a text that is not empty. Raises `ValueError` for any other than `bounds` says."""
        ...


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of the table."""

    name: str
    kind: Kind
    default: str
    """As it would stand in the environment; empty: none."""
    meaning: str

    @property
    def bounds(self) -> str:
        return self.kind.bounds


@dataclass(frozen=True, slots=True)
class Text:
    bounds: str = "any text"

    def read(self, text: str) -> str:
        return text


@dataclass(frozen=True, slots=True)
class SecretText:
    """A secret that is long enough to be one."""

    at_least: int = 32

    @property
    def bounds(self) -> str:
        return f"{self.at_least} characters or more"

    def read(self, text: str) -> str:
        if len(text) < self.at_least:
            raise ValueError
        return text


@dataclass(frozen=True, slots=True)
class Number:
    """Seconds, shares and the like: a decimal number within inclusive bounds."""

    low: float
    high: float
    unit: str = ""

    @property
    def bounds(self) -> str:
        return f"a number from {self.low:g} to {self.high:g}" + (f" ({self.unit})" if self.unit else "")

    def read(self, text: str) -> float:
        value = float(text)
        if not math.isfinite(value) or not self.low <= value <= self.high or "_" in text:
            raise ValueError
        return value


@dataclass(frozen=True, slots=True)
class Integer:
    low: int
    high: int

    @property
    def bounds(self) -> str:
        return f"a whole number from {self.low} to {self.high}"

    def read(self, text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII) or not self.low <= (value := int(text)) <= self.high:
            raise ValueError
        return value


@dataclass(frozen=True, slots=True)
class Bytes:
    low: int
    high: int

    @property
    def bounds(self) -> str:
        return f"bytes from {self.low} to {self.high}, as a whole number or with KiB, MiB or GiB behind it"

    def read(self, text: str) -> int:
        found = re.fullmatch(r"([0-9]{1,18}) ?(KiB|MiB|GiB)?", text, re.ASCII)
        if found is None:
            raise ValueError
        value = int(found[1]) * {None: 1, "KiB": 1024, "MiB": MIB, "GiB": 1024 * MIB}[found[2]]
        if not self.low <= value <= self.high:
            raise ValueError
        return value


@dataclass(frozen=True, slots=True)
class Flag:
    bounds: str = "1 or 0 (also true, false, yes, no, on, off)"

    def read(self, text: str) -> bool:
        return {
            "1": True,
            "true": True,
            "yes": True,
            "on": True,
            "0": False,
            "false": False,
            "no": False,
            "off": False,
        }[text.lower()]


@dataclass(frozen=True, slots=True)
class OneOf:
    words: tuple[str, ...]

    @property
    def bounds(self) -> str:
        return "one of " + ", ".join(self.words)

    def read(self, text: str) -> str:
        return {word.lower(): word for word in self.words}[text.lower()]


@dataclass(frozen=True, slots=True)
class Hosts:
    bounds: str = (
        "host names separated by commas, without scheme or port; .example.com for every name below it; * for any"
    )

    def read(self, text: str) -> tuple[str, ...]:
        hosts = _listed(text)
        if not hosts or not all(
            re.fullmatch(r"\*|\.?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|\[[0-9A-Fa-f:.]+\]", h) for h in hosts
        ):
            raise ValueError
        return hosts


@dataclass(frozen=True, slots=True)
class Origins:
    bounds: str = "origins separated by commas, each with its scheme: https://pilotage.example.com"

    def read(self, text: str) -> tuple[str, ...]:
        origins = _listed(text)
        if not origins or not all(re.fullmatch(r"https?://(\*\.)?[^\s/?#@*]+", origin) for origin in origins):
            raise ValueError
        return origins


@dataclass(frozen=True, slots=True)
class TimeZone:
    bounds: str = "a name of the time zone database, such as Europe/Paris"

    def read(self, text: str) -> str:
        try:
            return zoneinfo.ZoneInfo(text).key
        except (zoneinfo.ZoneInfoNotFoundError, OSError) as error:
            raise ValueError from error


@dataclass(frozen=True, slots=True)
class TimeOfDay:
    bounds: str = "a time of day, such as 03:30"

    def read(self, text: str) -> tuple[int, int]:
        found = re.fullmatch(r"([01]?[0-9]|2[0-3]):([0-5][0-9])", text, re.ASCII)
        if found is None:
            raise ValueError
        return int(found[1]), int(found[2])


@dataclass(frozen=True, slots=True)
class Folder:
    """Relative to the working directory of the process; the value is absolute."""

    bounds: str = "a directory, made when it is missing"

    def read(self, text: str) -> Path:
        return Path(text).expanduser().absolute()


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteFile:
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresServer:
    host: str
    """Empty: the local socket that the client library knows. A path: the directory of the socket."""
    port: int | None
    user: str
    password: str = field(repr=False)
    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    """Connection parameters of the client library, as given behind `?`."""


Database = SqliteFile | PostgresServer

POSTGRES_OPTIONS = frozenset(
    {
        "sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "channel_binding", "connect_timeout", "application_name",
        "target_session_attrs", "host", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count",
        "tcp_user_timeout",
    }
)  # fmt: skip
"""What may stand behind `?`: connection and TLS, nothing that changes how statements behave."""


@dataclass(frozen=True, slots=True)
class DatabaseUrl:
    bounds: str = (
        "sqlite:///relative/path, sqlite:////absolute/path or postgres://user:password@host:port/name?sslmode=require"
    )

    def read(self, text: str) -> Database:
        url = urlsplit(text)
        if url.fragment or re.search(r"\s", text):
            raise ValueError
        if url.scheme == "sqlite":
            path = unquote(url.path.removeprefix("/"))
            if url.netloc or url.query or not path or path.endswith("/") or path == ":memory:":
                raise ValueError
            return SqliteFile(path=Path(path).absolute())
        if url.scheme not in ("postgres", "postgresql"):
            raise ValueError
        name = unquote(url.path.removeprefix("/"))
        given = parse_qsl(url.query, keep_blank_values=True, strict_parsing=True) if url.query else []
        options = dict(given)
        if not name or "/" in name or len(options) != len(given) or not POSTGRES_OPTIONS.issuperset(options):
            raise ValueError
        socket_folder = options.pop("host", "")
        if socket_folder and (url.hostname or not socket_folder.startswith("/")):
            raise ValueError
        return PostgresServer(
            host=socket_folder or unquote(url.hostname or ""),
            port=url.port,
            user=unquote(url.username or ""),
            password=unquote(url.password or ""),
            name=name,
            options=options,
        )


@dataclass(frozen=True, slots=True)
class RedisUrl:
    bounds: str = "redis://:password@host:6379/0, rediss:// for TLS, or unix:///path/to/socket"

    def read(self, text: str) -> str:
        url = urlsplit(text)
        if url.fragment or re.search(r"\s", text):
            raise ValueError
        if url.scheme == "unix":
            if url.hostname or len(url.path) < 2:
                raise ValueError
        elif url.scheme not in ("redis", "rediss") or not url.hostname or not re.fullmatch(r"(/[0-9]{0,4})?", url.path):
            raise ValueError
        _ = url.port
        return text


@dataclass(frozen=True, slots=True)
class HttpUrl:
    bounds: str = "a URL with http or https, without a password in it"

    def read(self, text: str) -> str:
        url = urlsplit(text)
        if url.scheme not in ("http", "https") or not url.hostname or url.password is not None or url.fragment:
            raise ValueError
        if re.search(r"\s", text):
            raise ValueError
        _ = url.port
        return text


@dataclass(frozen=True, slots=True)
class HeaderFields:
    bounds: str = "`name=value`, several with a comma between"

    def read(self, text: str) -> Mapping[str, str]:
        fields: dict[str, str] = {}
        for part in text.split(","):
            name, equals, value = part.strip().partition("=")
            if (
                not equals
                or not re.fullmatch(r"[A-Za-z0-9-]+", name)
                or not re.fullmatch(r"[!-~]([ -~]*[!-~])?", value)
            ):
                raise ValueError
            if name.lower() in fields:
                raise ValueError
            fields[name.lower()] = value
        return fields


@dataclass(frozen=True, slots=True)
class PageUrl:
    bounds: str = "https://pilotage.example.com, without a path"

    def read(self, text: str) -> str:
        url = urlsplit(text)
        if url.scheme not in ("http", "https") or not re.fullmatch(r"https?://[A-Za-z0-9_.:\[\]-]+/?", text, re.ASCII):
            raise ValueError
        _ = url.port
        return text.rstrip("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class MailServer:
    host: str
    port: int
    user: str
    password: str = field(repr=False)
    encryption: str
    """`none`, `starttls` or `tls`."""


@dataclass(frozen=True, slots=True)
class MailUrl:
    bounds: str = (
        "smtp+starttls://user:password@host:587, smtps://user:password@host:465 or, without encryption, smtp://host:25"
    )

    def read(self, text: str) -> MailServer:
        url = urlsplit(text)
        kinds = {"smtp": ("none", 25), "smtp+starttls": ("starttls", 587), "smtps": ("tls", 465)}
        if url.scheme not in kinds or not url.hostname or url.path not in ("", "/") or url.query or url.fragment:
            raise ValueError
        if re.search(r"\s", text) or (url.password and not url.username):
            raise ValueError
        encryption, port = kinds[url.scheme]
        return MailServer(
            host=url.hostname,
            port=url.port or port,
            user=unquote(url.username or ""),
            password=unquote(url.password or ""),
            encryption=encryption,
        )


@dataclass(frozen=True, slots=True)
class Sender:
    bounds: str = "a mail address, or Name <address>"

    def read(self, text: str) -> str:
        address = r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*"
        if not re.fullmatch(rf"{address}|[^<>\"@,;:\x00-\x1f\x7f]+ <{address}>", text):
            raise ValueError
        return text


@dataclass(frozen=True, slots=True)
class KeyFile:
    bounds: str = "the path of a file"

    def read(self, text: str) -> Path:
        return Path(text).expanduser().absolute()


def _variable(name: str, kind: Kind, default: str, meaning: str, *, secret: bool = False) -> Any:
    return field(repr=not secret, metadata={"setting": Setting(name, kind, default, meaning)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What the operator set, checked. Each field's variable, bounds and meaning stand in its row."""

    data_dir: Path = _variable(
        "PILOTAGE_DATA_DIR",
        Folder(),
        "./var",
        "Where everything that Pilotage writes goes: the SQLite file, the spool, the last good configuration and "
        "generated secrets.",
    )
    database: Database | None = _variable(
        "DATABASE_URL",
        DatabaseUrl(),
        "",
        "The database. Without it a SQLite file `pilotage.sqlite3` in the data directory.",
        secret=True,
    )
    redis_url: str | None = _variable(
        "REDIS_URL",
        RedisUrl(),
        "",
        "Redis, where the workers' tasks wait. Without it they wait in the data directory. See docs/workers.md.",
        secret=True,
    )
    secret_key: str | None = _variable(
        "PILOTAGE_SECRET_KEY",
        SecretText(),
        "",
        "What sessions and forms are signed with, through one derived key per purpose. Without it one is made once in "
        "the data directory; several machines must share one.",
        secret=True,
    )
    token_pepper: str | None = _variable(
        "PILOTAGE_TOKEN_PEPPER",
        SecretText(),
        "",
        "The key of the digests that tokens are stored as. Without it one is made once in the data directory; several "
        "machines must share one. Changing it makes every token invalid.",
        secret=True,
    )
    allowed_hosts: tuple[str, ...] = _variable(
        "PILOTAGE_ALLOWED_HOSTS",
        Hosts(),
        "localhost,127.0.0.1,[::1]",
        "Host names under which the admin and the other pages answer. `/v1/` answers under every name.",
    )
    csrf_trusted_origins: tuple[str, ...] = _variable(
        "PILOTAGE_CSRF_TRUSTED_ORIGINS",
        Origins(),
        "",
        "Further origins from which forms may be sent: needed behind a proxy that ends TLS.",
    )
    secure_cookies: bool = _variable(
        "PILOTAGE_SECURE_COOKIES",
        Flag(),
        "0",
        "Send the session and form cookies over HTTPS only. Set it wherever the admin is under HTTPS.",
    )
    trust_forwarded_proto: bool = _variable(
        "PILOTAGE_TRUST_FORWARDED_PROTO",
        Flag(),
        "0",
        "Believe `X-Forwarded-Proto`. Only behind a proxy that always sets it itself.",
    )
    hsts_seconds: int = _variable(
        "PILOTAGE_HSTS_SECONDS",
        Integer(0, 63_072_000),
        "0",
        "How long browsers shall insist on HTTPS (`Strict-Transport-Security`). 0: the header is not sent.",
    )
    session_seconds: int = _variable(
        "PILOTAGE_SESSION_SECONDS", Integer(60, 31_536_000), "43200", "How long a login to the admin lasts."
    )
    time_zone: str = _variable(
        "PILOTAGE_TIME_ZONE", TimeZone(), "UTC", "The zone in which pages show times and days begin."
    )
    log_level: str = _variable(
        "PILOTAGE_LOG_LEVEL",
        OneOf(("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")),
        "INFO",
        "The least severe log line that is written.",
    )
    debug: bool = _variable(
        "PILOTAGE_DEBUG", Flag(), "0", "Show tracebacks and settings in the browser. Never where others can reach it."
    )
    database_wait_seconds: float = _variable(
        "PILOTAGE_DATABASE_WAIT_SECONDS",
        Number(0.1, 300, "seconds"),
        "20",
        "How long a statement waits for a locked SQLite file, and connecting to PostgreSQL may take.",
    )
    poll_seconds: float = _variable(
        "PILOTAGE_POLL_SECONDS",
        Number(0.05, 1.5, "seconds"),
        "0.5",
        "How often a process looks for a new Revision and for changed callers and tokens. A revoked token is refused "
        "after this time at the latest, plus the time of the query.",
    )
    max_request_bytes: int = _variable(
        "PILOTAGE_MAX_REQUEST_BYTES",
        Bytes(1024, 1024 * MIB),
        "32MiB",
        "The longest request body under `/v1/`; a longer one is answered 413.",
    )
    max_in_flight: int = _variable(
        "PILOTAGE_MAX_IN_FLIGHT",
        Integer(1, 100_000),
        "1024",
        "Requests under `/v1/` that one process works on at a time; further ones wait.",
    )
    max_queued: int = _variable(
        "PILOTAGE_MAX_QUEUED",
        Integer(0, 100_000),
        "512",
        "Requests that may wait in one process for their turn; a further one is refused at once. See docs/overload.md.",
    )
    queue_seconds: float = _variable(
        "PILOTAGE_QUEUE_SECONDS",
        Number(0.05, 300, "seconds"),
        "5",
        "How long a request may wait for its turn. One that would have to wait longer is refused at once.",
    )
    max_body_bytes_held: int = _variable(
        "PILOTAGE_MAX_BODY_BYTES_HELD",
        Bytes(2048, 1024 * 1024 * MIB),
        "512MiB",
        "What the request bodies that one process holds may take in all: at least twice PILOTAGE_MAX_REQUEST_BYTES.",
    )
    max_memory_bytes: int = _variable(
        "PILOTAGE_MAX_MEMORY_BYTES",
        Bytes(0, 1024 * 1024 * MIB),
        "0",
        "The resident memory of one process above which new requests are refused. 0: no bound.",
    )
    head_seconds: float = _variable(
        "PILOTAGE_HEAD_SECONDS",
        Number(0.1, 300, "seconds"),
        "10",
        "How long a client may take to send its request line and headers.",
    )
    min_body_bytes_per_second: int = _variable(
        "PILOTAGE_MIN_BODY_BYTES_PER_SECOND",
        Integer(0, 1_000_000_000),
        "1024",
        "The slowest a client may send its body, over the time it has taken so far. 0: as slow as it likes.",
    )
    write_stall_seconds: float = _variable(
        "PILOTAGE_WRITE_STALL_SECONDS",
        Number(0.1, 3600, "seconds"),
        "60",
        "How long a client may read nothing of an answer before it is cut off.",
    )
    drain_seconds: float = _variable(
        "PILOTAGE_DRAIN_SECONDS",
        Number(0, 86_400, "seconds"),
        "300",
        "How long running answers may go on after SIGTERM before they are ended with an error.",
    )
    spool_file_bytes: int = _variable(
        "PILOTAGE_SPOOL_FILE_BYTES",
        Bytes(64 * 1024, 1024 * MIB),
        "64MiB",
        "The size at which a process begins a new file of records.",
    )
    spool_max_bytes: int = _variable(
        "PILOTAGE_SPOOL_MAX_BYTES",
        Bytes(MIB, 1024 * 1024 * MIB),
        "1GiB",
        "What the records that wait on disk may take in all; beyond it new records are dropped and counted.",
    )
    ingest_batch_lines: int = _variable(
        "PILOTAGE_INGEST_BATCH_LINES",
        Integer(1, 50_000),
        "2000",
        "Lines of the spool that `ingest` writes to the database in one transaction.",
    )
    ingest_poll_seconds: float = _variable(
        "PILOTAGE_INGEST_POLL_SECONDS",
        Number(0.05, 60, "seconds"),
        "0.5",
        "How long `ingest` waits before it looks for new lines again.",
    )
    ingest_aside_max_bytes: int = _variable(
        "PILOTAGE_INGEST_ASIDE_MAX_BYTES",
        Bytes(64 * 1024, 1024 * 1024 * MIB),
        "256MiB",
        "How large each of the files may become in which lines are set aside that are damaged, or of a newer release.",
    )
    max_candidates: int = _variable(
        "PILOTAGE_MAX_CANDIDATES",
        Integer(1, 1000),
        "32",
        "Candidates and exclusions of one decision that records keep, the first in the order of trying.",
    )
    metrics_host: str = _variable(
        "PILOTAGE_METRICS_HOST",
        Text("an address of this machine"),
        "127.0.0.1",
        "Where the metrics are served, besides the pages. See docs/metrics.md.",
    )
    metrics_port: int | None = _variable(
        "PILOTAGE_METRICS_PORT",
        Integer(0, 65_535),
        "",
        "The port of the metrics; 0 takes a free one. Without it they are not served there.",
    )
    metrics_token: str | None = _variable(
        "PILOTAGE_METRICS_TOKEN",
        SecretText(),
        "",
        "What whoever reads the metrics must bring, as `Authorization: Bearer`. With it, `/metrics` answers on the "
        "gateway's own port too.",
        secret=True,
    )
    metrics_max_names: int = _variable(
        "PILOTAGE_METRICS_MAX_NAMES",
        Integer(1, 10_000),
        "200",
        "How many model groups, and how many targets, the metrics tell apart; further ones count as `other`.",
    )
    traces_endpoint: str | None = _variable(
        "PILOTAGE_TRACES_ENDPOINT",
        HttpUrl(),
        "",
        "Where spans are sent, by OTLP over HTTP: the whole URL, such as http://127.0.0.1:4318/v1/traces. Without it "
        "none are made. See docs/traces.md.",
    )
    traces_headers: Mapping[str, str] | None = _variable(
        "PILOTAGE_TRACES_HEADERS",
        HeaderFields(),
        "",
        "What the collector must be sent besides, such as its key.",
        secret=True,
    )
    traces_share: float = _variable(
        "PILOTAGE_TRACES_SHARE",
        Number(0.0, 1.0),
        "1",
        "Of the traces that begin here, how many are sampled. For others it was decided where they began.",
    )
    traces_max_waiting: int = _variable(
        "PILOTAGE_TRACES_MAX_WAITING",
        Integer(1, 1_000_000),
        "10000",
        "Exchanges that may wait for the collector; further ones are not traced.",
    )
    traces_timeout_seconds: float = _variable(
        "PILOTAGE_TRACES_TIMEOUT_SECONDS",
        Number(0.1, 60.0),
        "10",
        "How long the collector may take for one batch.",
    )
    rollup_seconds: int = _variable(
        "PILOTAGE_ROLLUP_SECONDS",
        Integer(5, 3600),
        "120",
        "How often the workers sum up what has come in since: hours and days of the reports are this far behind.",
    )
    retention_at: tuple[int, int] = _variable(
        "PILOTAGE_RETENTION_AT",
        TimeOfDay(),
        "03:30",
        "When the workers delete what has been kept long enough, in PILOTAGE_TIME_ZONE.",
    )
    rollup_today_seconds: int = _variable(
        "PILOTAGE_ROLLUP_TODAY_SECONDS",
        Integer(5, 86_400),
        "900",
        "How old the sums of a running day may become before they are made again. Its quarters of an hour follow "
        "PILOTAGE_ROLLUP_SECONDS.",
    )
    rollup_memory_mb: int = _variable(
        "PILOTAGE_ROLLUP_MEMORY_MB",
        Integer(1, 100_000),
        "64",
        "Megabytes that PostgreSQL may take for each grouping of a sum before it goes to disk. SQLite has no such bound.",
    )
    keep_detail_days: int = _variable(
        "PILOTAGE_KEEP_DETAIL_DAYS",
        Integer(0, 36_500),
        "30",
        "How many days the detail of decisions is kept: candidates, scores, exclusions. 0: for ever.",
    )
    keep_attempt_days: int = _variable(
        "PILOTAGE_KEEP_ATTEMPT_DAYS",
        Integer(0, 36_500),
        "90",
        "How many days attempts and fallbacks are kept. 0: for ever.",
    )
    keep_exchange_days: int = _variable(
        "PILOTAGE_KEEP_EXCHANGE_DAYS",
        Integer(0, 36_500),
        "90",
        "How many days exchanges are kept; whatever is left of their detail goes with them. 0: for ever.",
    )
    keep_slot_days: int = _variable(
        "PILOTAGE_KEEP_SLOT_DAYS",
        Integer(0, 36_500),
        "400",
        "How many days sums by quarters of an hour are kept, from which days of any zone can be made. 0: for ever.",
    )
    keep_day_days: int = _variable(
        "PILOTAGE_KEEP_DAY_DAYS",
        Integer(0, 36_500),
        "0",
        "How many days sums by day and decision buckets are kept. 0: for ever.",
    )
    keep_damaged_days: int = _variable(
        "PILOTAGE_KEEP_DAMAGED_DAYS",
        Integer(0, 36_500),
        "30",
        "How many days damaged lines of the spool are kept. 0: for ever.",
    )
    retention_batch: int = _variable(
        "PILOTAGE_RETENTION_BATCH",
        Integer(1, 20_000),
        "1000",
        "How many exchanges retention deletes, or frees of detail, in one transaction.",
    )
    retention_pause_seconds: float = _variable(
        "PILOTAGE_RETENTION_PAUSE_SECONDS",
        Number(0, 60, "seconds"),
        "0.05",
        "How long retention lets others write between two transactions.",
    )
    report_max_days: int = _variable(
        "PILOTAGE_REPORT_MAX_DAYS",
        Integer(1, 3_660),
        "400",
        "The longest period that a report can be about, in days.",
    )
    report_page_rows: int = _variable(
        "PILOTAGE_REPORT_PAGE_ROWS",
        Integer(5, 500),
        "50",
        "Exchanges on one page of a list.",
    )
    report_search_rows: int = _variable(
        "PILOTAGE_REPORT_SEARCH_ROWS",
        Integer(100, 10_000_000),
        "50000",
        "How many exchanges one page looks through, from the newest on, for those that match or are odd.",
    )
    report_export_rows: int = _variable(
        "PILOTAGE_REPORT_EXPORT_ROWS",
        Integer(1, 100_000_000),
        "100000",
        "How many exchanges one export holds at most.",
    )
    report_file_bytes: int = _variable(
        "PILOTAGE_REPORT_FILE_BYTES",
        Bytes(1024, 256 * MIB),
        "10MiB",
        "The largest file that a scheduled report may make; beyond it the report fails.",
    )
    report_mail_bytes: int = _variable(
        "PILOTAGE_REPORT_MAIL_BYTES",
        Bytes(0, 256 * MIB),
        "5MiB",
        "What the files of one mail may take in all; beyond it the mail says where they are kept.",
    )
    report_mail_tries: int = _variable(
        "PILOTAGE_REPORT_MAIL_TRIES",
        Integer(1, 100),
        "5",
        "How often it is tried to mail a report, 1, 5, 15 and then 60 minutes apart.",
    )
    report_max_recipients: int = _variable(
        "PILOTAGE_REPORT_MAX_RECIPIENTS", Integer(0, 1000), "20", "Recipients that one scheduled report may have."
    )
    report_catch_up_hours: int = _variable(
        "PILOTAGE_REPORT_CATCH_UP_HOURS",
        Integer(0, 8760),
        "48",
        "How long ago a scheduled report may have been due to be made still, when no worker ran. The last one always is.",
    )
    keep_report_days: int = _variable(
        "PILOTAGE_KEEP_REPORT_DAYS",
        Integer(0, 36_500),
        "90",
        "How many days the runs of scheduled reports are kept, with their files. 0: for ever.",
    )
    keep_report_runs: int = _variable(
        "PILOTAGE_KEEP_REPORT_RUNS",
        Integer(1, 10_000),
        "200",
        "How many runs of each scheduled report are kept at most, with their files.",
    )
    email: MailServer | None = _variable(
        "PILOTAGE_EMAIL_URL",
        MailUrl(),
        "",
        "The mail server of scheduled reports. Without it mails are written to the worker's standard output.",
        secret=True,
    )
    email_password_file: Path | None = _variable(
        "PILOTAGE_EMAIL_PASSWORD_FILE",
        KeyFile(),
        "",
        "The file that holds the mail server's password, for who does not want it in PILOTAGE_EMAIL_URL.",
    )
    email_from: str = _variable(
        "PILOTAGE_EMAIL_FROM", Sender(), "Pilotage <pilotage@localhost>", "Who mails come from."
    )
    email_timeout_seconds: float = _variable(
        "PILOTAGE_EMAIL_TIMEOUT_SECONDS",
        Number(0.1, 120, "seconds"),
        "20",
        "How long the mail server may take for one step.",
    )
    public_url: str | None = _variable(
        "PILOTAGE_PUBLIC_URL",
        PageUrl(),
        "",
        "The address under which people reach the pages, for links in mails. Without it mails name the path alone.",
    )
    live_max_watchers: int = _variable(
        "PILOTAGE_LIVE_MAX_WATCHERS",
        Integer(0, 10_000),
        "50",
        "How many live pages one process serves at a time; a further one is told so.",
    )
    live_answer_seconds: float = _variable(
        "PILOTAGE_LIVE_ANSWER_SECONDS",
        Number(0.5, 300, "seconds"),
        "15",
        "How long a live page may take to show what it was sent before its connection is ended.",
    )
    live_max_names: int = _variable(
        "PILOTAGE_LIVE_MAX_NAMES",
        Integer(1, 10_000),
        "500",
        "How many targets in model groups the live page tells apart; further ones count as `other`.",
    )
    api_requests_per_minute: int = _variable(
        "PILOTAGE_API_REQUESTS_PER_MINUTE",
        Integer(0, 1_000_000),
        "300",
        "Requests to `/api/` that one process takes in a minute from a user, or from a caller. 0: any number.",
    )
    api_page_size: int = _variable(
        "PILOTAGE_API_PAGE_SIZE",
        Integer(1, 10_000),
        "100",
        "Rows of a page of the API that does not say how many; never more than PILOTAGE_API_MAX_PAGE_SIZE.",
    )
    api_max_page_size: int = _variable(
        "PILOTAGE_API_MAX_PAGE_SIZE", Integer(1, 10_000), "1000", "The most rows that a page of the API may have."
    )
    api_query_seconds: float = _variable(
        "PILOTAGE_API_QUERY_SECONDS",
        Number(0.05, 600, "seconds"),
        "10",
        "How long the database may work on an answer of the API; what takes longer is answered 503.",
    )
    task_soft_seconds: int = _variable(
        "PILOTAGE_TASK_SOFT_SECONDS",
        Integer(1, 86_400),
        "240",
        "How long a task may run before it is told to stop: less than PILOTAGE_TASK_HARD_SECONDS.",
    )
    task_hard_seconds: int = _variable(
        "PILOTAGE_TASK_HARD_SECONDS",
        Integer(2, 86_400),
        "300",
        "How long a task may run before its process is killed. On Redis, a task whose worker died goes to another after "
        "twice this time and a few seconds.",
    )
    broker_max_messages: int = _variable(
        "PILOTAGE_BROKER_MAX_MESSAGES",
        Integer(10, 1_000_000),
        "10000",
        "Tasks that may wait in the data directory; a further one is refused. Without Redis only.",
    )
    broker_keep_days: int = _variable(
        "PILOTAGE_BROKER_KEEP_DAYS",
        Integer(1, 365),
        "7",
        "After how many days files are removed from the broker's folder that no worker asks for.",
    )


SETTINGS: tuple[Setting, ...] = tuple(f.metadata["setting"] for f in fields(Environment))


def read(environ: Mapping[str, str]) -> Environment:
    """Every setting of `environ`, defaults filled in; a variable that is empty counts as absent.

    Raises `BadEnvironment` with all problems at once. Touches no disk.
    """
    values: dict[str, Any] = {}
    problems: list[str] = []
    for row in fields(Environment):
        setting: Setting = row.metadata["setting"]
        text = environ.get(setting.name, "").strip() or setting.default
        try:
            values[row.name] = setting.kind.read(text) if text else _nothing(row.name)
        except (ValueError, KeyError):
            problems.append(f"{setting.name}: {_shown(setting, text)} is not allowed; expected {setting.bounds}")
    if not problems and values["spool_max_bytes"] < values["spool_file_bytes"]:
        problems.append("PILOTAGE_SPOOL_MAX_BYTES: must not be less than PILOTAGE_SPOOL_FILE_BYTES")
    if not problems and values["max_body_bytes_held"] < 2 * values["max_request_bytes"]:
        problems.append("PILOTAGE_MAX_BODY_BYTES_HELD: must be at least twice PILOTAGE_MAX_REQUEST_BYTES")
    if not problems and values["task_soft_seconds"] >= values["task_hard_seconds"]:
        problems.append("PILOTAGE_TASK_SOFT_SECONDS: must be less than PILOTAGE_TASK_HARD_SECONDS")
    if problems:
        raise BadEnvironment(problems)
    return Environment(**values)


def derived_key(secret: str, purpose: str) -> bytes:
    """32 bytes that are good for one purpose only: knowing one tells nothing of another."""
    return hmac.digest(secret.encode(), f"pilotage/{purpose}".encode(), hashlib.sha256)


def kept_secret(path: Path) -> str:
    """The secret in a file, made there first when the file is missing: 64 hexadecimal digits, mode 0600.

    Processes that start together all return the one that was first: the file appears complete, under its name, once.
    Raises `OSError`, and `ValueError` for a file that holds no secret.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        own = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        descriptor = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(32) + "\n")
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):  # another process was first: its secret is the one
                os.link(own, path)
        finally:
            own.unlink()
    text = path.read_text().strip()
    if len(text) < 32:
        raise ValueError(f"{path} holds no secret")
    return text


def mail_settings(process: Environment) -> dict[str, Any]:
    """Of Django's mail. Raises `OSError`, and `ValueError` for a password file that holds none."""
    server = process.email
    if server is None:
        console = "django.core.mail.backends.console.EmailBackend"
        return {"backend": console, "host": "", "port": 0, "user": "", "password": "", "starttls": False, "tls": False}
    password = server.password
    if process.email_password_file is not None:
        password = process.email_password_file.read_text().strip()
        if not password:
            raise ValueError(f"{process.email_password_file} is empty")
    return {
        "backend": "django.core.mail.backends.smtp.EmailBackend",
        "host": server.host,
        "port": server.port,
        "user": server.user,
        "password": password,
        "starttls": server.encryption == "starttls",
        "tls": server.encryption == "tls",
    }


def _nothing(name: str) -> tuple[()] | None:
    return () if name == "csrf_trusted_origins" else None


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _shown(setting: Setting, text: str) -> str:
    """The bad value, unless it may hold a secret."""
    if isinstance(setting.kind, SecretText | DatabaseUrl | RedisUrl | MailUrl):
        return "the value"
    return repr(text if len(text) <= 80 else text[:77] + "...")
