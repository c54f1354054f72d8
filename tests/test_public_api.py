"""What is exported, what is documented, and which way imports go."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tallygate

SOURCE = Path(tallygate.__file__).parent
ROOT = SOURCE.parent.parent

# A package imports those before it, never one after it. `lab` is imported by `cli` alone.
ORDER = (
    "",
    "core",
    "jvm",
    "spec",
    "kafka",
    "postgres",
    "endpoints",
    "consumer",
    "spark",
    "targets",
    "engine",
    "auditing",
    "lab",
    "cli",
    "__main__",
)
FORBIDDEN = {
    "spec": {"core", "jvm"},
    "kafka": {"spec"},
    "postgres": {"spec", "kafka", "jvm"},
    "consumer": {"spec", "jvm"},
    "spark": {"consumer", "postgres"},
    "targets": {"consumer", "jvm"},
}
"""What packages do not import although it comes before them."""


@functools.cache
def _modules() -> dict[str, Path]:
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path
    return found


def _imports(path: Path) -> set[str]:
    """The modules of this package that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {
                a.name.removeprefix("tallygate.") for a in node.names if "tallygate." in a.name
            }
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tallygate"):
            base = (node.module or "").removeprefix("tallygate").lstrip(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".lstrip(".")
                names.add(inner if inner in _modules() else base)
    return names - {""}


def test_the_exported_names() -> None:
    assert set(tallygate.__all__) == {
        "Anomaly",
        "AuditResult",
        "Cluster",
        "Connection",
        "DeadLetter",
        "DeadLetters",
        "Dedup",
        "Delta",
        "Files",
        "Kafka",
        "KafkaSink",
        "Output",
        "Parquet",
        "Pipeline",
        "PipelineStatus",
        "Postgres",
        "Producer",
        "Rebuilt",
        "Record",
        "Retry",
        "Settings",
        "Stack",
        "TallygateError",
        "Topics",
        "Trace",
        "Verdict",
        "audit",
        "consume",
        "dead_letters",
        "forget_topic",
        "rebuild",
        "session",
        "status",
        "trace",
        "write_stream",
    }
    for name in tallygate.__all__:
        assert getattr(tallygate, name) is not None
    assert set(tallygate.__all__) <= set(dir(tallygate))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        tallygate.nonsense  # noqa: B018


def test_no_module_hides_what_is_exported() -> None:
    """An import of `tallygate.audit` as a module would put it in the place of the function."""
    assert not set(tallygate.__all__) & {name.partition(".")[0] for name in _modules()}


def test_what_is_exported_is_documented() -> None:
    documented = (ROOT / "docs" / "python.md").read_text()
    for name in tallygate.__all__:
        assert f"`{name}`" in documented, f"docs/python.md does not mention {name}"


def test_importing_the_package_is_quick() -> None:
    program = "import sys, tallygate; print([m for m in ('pyspark', 'psutil') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def _package(module: str) -> str:
    """The package of a module, or the module itself if the order names it; the rest is the base."""
    first = module.partition(".")[0]
    return first if first in ORDER else ""


def test_every_package_has_its_place_in_the_order() -> None:
    packages = {name.partition(".")[0] for name, path in _modules().items() if "." in name}
    assert packages <= set(ORDER)


def test_imports_go_one_way() -> None:
    wrong = []
    for name, path in _modules().items():
        mine = _package(name)
        if name == "":
            continue  # the public API, whose names are imported when they are used
        for imported in _imports(path):
            theirs = _package(imported)
            later = ORDER.index(theirs) > ORDER.index(mine)
            into_lab = theirs == "lab" and mine not in ("lab", "cli")
            if later or into_lab or theirs in FORBIDDEN.get(mine, ()):
                wrong.append(f"{name} imports {imported}")
    assert not wrong


def test_only_the_package_spark_uses_what_spark_keeps_to_itself() -> None:
    """And what is Delta's own, the one module that speaks to Delta's library."""
    private = re.compile(r"\._(jdf|jvm|jsparkSession|jsc|jsq|jc|gateway)\b")
    found = {
        name
        for name, path in _modules().items()
        if _package(name) != "spark" and private.search(path.read_text())
    }
    assert found == {"targets.delta.table"}


def test_every_module_says_why_it_exists() -> None:
    for name, path in _modules().items():
        assert ast.get_docstring(ast.parse(path.read_text())), f"{name} has no docstring"
