"""The floors of the house: who may import whom, how long a file may be, and what only one module may do.

Read from the syntax trees, so that an import inside a function counts like one at the top. Where a test here fails,
move the code; a new module needs a line in LEVELS.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("policies", "gateway", "loadtests")
MAX_LINES = 400

LEVELS = (
    # Each level may import all levels below it, and `policies`. A `+` glues what may also import each other.
    # 0: words that everybody uses
    (
        "errors",
        "logs",
        "config + document + sections + tenancy",
        "unpack",
        "routes",
        "usage",
        "patience",
        "salt",
        "splice",
        "trace + hops + tracecontext",
        "metrics + instruments",
        "summing",
        "engines.adapter",
    ),
    # 1: one thing each; siblings do not know each other, but for the pairs in MAY_KNOW
    (
        "openai + forms",
        "tokens.*",
        "sse + deltas",
        "plain",
        "headers",
        "client",
        "upstream + connection + failures",
        "fleet + lease + members",
        "tenants",
        "allowed",
        "keys",
        "homes",
        "accesslog",
        "logfile",
        "loglines",
        "shapes + masks",
        "engines.*",
        "discovery.*",
        "models",
        "kvstream",
        "redisline + redislink + rediswire",
    ),
    # 2: bring two or three of them together
    (
        "relay",
        "pings",
        "probe",
        "readers + questions",
        "kvevents + told",
        "gate",
        "classes",
        "sharedredis",
        "tariffs",
        "usagestore + usagefiles + usagespool + usageredis",
        "sources",
        "tracing + spans",
        "limiter + sharedledger",
        "modelnames",
        "modelconfig + modelblocks + modelfile + quantized",
    ),
    (
        "guard",
        "tenantwatch",
        "keystores",
        "gauges",
        "scaling",
        "looplag",
        "accounts",
        "history",
        "dashboard",
        "bookkeepers",
    ),
    ("admin", "accountpages", "doctor"),
    ("overview",),
    ("profile.*",),
    # 3: the life of a request
    ("proxy + exchange + attempt + stored + intake + demand",),
    # 4: builds everything
    ("app",),
    # 5: the command
    (
        "cli + __main__ + keycli + tenantcli + usagecli + metricscli + profilecli + doctorcli + topcli + topview"
        " + kvcli + kvfleet + kvsheet + asking + terminal",
    ),
)

MAY_KNOW = {
    "models": {"fleet", "tenants"},
    "kvstream": {"engines.kvsources"},
    "trace": {"usage"},
    "deltas": {"tokens"},
    "plain": {"tokens"},
    "engines.adapter": {"config"},
    "accesslog": {"logfile"},
}
"""The few that may import a module of their own level."""

PURE = {"uhashring", "xxhash"}
"""What policies may import beside the standard library and themselves."""

IMPURE = {"asyncio", "aiohttp", "redis", "opentelemetry", "logging", "time", "os"}
"""What policies may not import, standard or not: no clock, no log, no I/O, no waiting."""

ONLY_IN = {
    "prometheus_client": {"gateway.metrics", "gateway.instruments", "gateway.summing"},
    "pydantic": {"gateway.config", "gateway.sections", "gateway.tenancy"},
    "hiredis": {"gateway.rediswire"},
    "redis": set[str](),  # for tests only
    "tokenizers": {"gateway.tokens.loading", "gateway.tokens.checks"},
    "opentelemetry": {"gateway.spans", "gateway.tracing"},
    "huggingface_hub": {"gateway.tokens.loading"},
    "fastokens": {"gateway.tokens.checks"},
    "jinja2": {"gateway.tokens.template", "gateway.tokens.content", "gateway.tokens.loading", "gateway.profile.page"},
    "httptools": {"gateway.connection"},
    "matplotlib": {"gateway.profile.charts"},
    "zmq": {"gateway.kvstream"},
    "msgspec": {"gateway.engines.kvevents"},
    "typer": {
        "gateway.cli",
        "gateway.keycli",
        "gateway.tenantcli",
        "gateway.usagecli",
        "gateway.metricscli",
        "gateway.profilecli",
        "gateway.doctorcli",
        "gateway.kvcli",
        "gateway.topcli",
    },
    "uvloop": {"gateway.cli"},
    "policies.books": {"gateway.lease"},
    "policies.catalog": {"gateway.config", "gateway.app"},
}
"""Modules of others, and who in gateway/ may import them."""

HEALTH_WRITERS = {"gateway.fleet", "gateway.lease", "gateway.probe"}
HEALTH_EVENTS = {"answered", "unanswered", "served", "failed", "not_now", "drain"}


@dataclass(frozen=True)
class Module:
    """A file of ours."""

    name: str
    path: Path

    @property
    def tree(self) -> ast.Module:
        return parsed(self.path)

    @property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Give all of its syntax, flat."""
        return flat(self.path)

    @property
    def lines(self) -> int:
        return len(self.path.read_text().splitlines())

    def imports(self) -> Iterator[tuple[str, str | None]]:
        """Give what it imports, each as a module and a name in it (None: the module itself)."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                yield from ((alias.name, None) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{self.name} has a relative import"
                assert node.module is not None
                yield from ((node.module, alias.name) for alias in node.names)

    def imported(self) -> set[str]:
        """Give the modules it imports, as precisely as the tree of files can tell."""
        return {f"{module}.{name}" if f"{module}.{name}" in NAMES else module for module, name in self.imports()}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


@cache
def flat(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parsed(path)))


def find(package: str) -> list[Module]:
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found.append(Module(".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


MODULES = [module for package in PACKAGES for module in find(package)]
NAMES = {module.name for module in MODULES}
BY_NAME = {module.name: module for module in MODULES}
each_module = pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)


def of(*packages: str) -> pytest.MarkDecorator:
    chosen = [module for module in MODULES if module.name.split(".")[0] in packages]
    return pytest.mark.parametrize("module", chosen, ids=lambda module: module.name)


def top(name: str) -> str:
    return name.partition(".")[0]


# Between the floors.


@of("policies")
def test_policies_import_nothing_that_waits_or_does_io(module: Module) -> None:
    assert not {top(name) for name, _ in module.imports()} & IMPURE


@of("policies")
def test_policies_stand_on_the_standard_library_alone(module: Module) -> None:
    foreign = {top(name) for name, _ in module.imports()} - sys.stdlib_module_names - PURE
    assert foreign <= {"policies"}


@of("policies")
def test_policies_take_chance_as_an_argument(module: Module) -> None:
    assert {name for source, name in module.imports() if source == "random"} <= {"Random"}
    made = [node for node in module.nodes if isinstance(node, ast.Call) and called(node) == "Random"]
    assert not made, "the seeded generator is handed in"


@of("policies")
def test_policies_never_await(module: Module) -> None:
    waits = ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith
    assert not [node for node in module.nodes if isinstance(node, waits)]


@of("gateway")
def test_the_gateway_never_imports_the_load_tests(module: Module) -> None:
    assert "loadtests" not in {top(name) for name, _ in module.imports()}


def test_the_engine_model_shares_no_code_with_what_it_tests() -> None:
    seen: set[str] = set()
    todo = ["loadtests.engine"]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += [imported for imported in BY_NAME[name].imported() if top(imported) in PACKAGES]
    assert {top(name) for name in seen} == {"loadtests"}


# Inside the gateway.


def level_of(name: str) -> tuple[int, str]:
    """Give a gateway module's level and the entry of the table that names it.

    Raises:
        LookupError: the table does not know it.
    """
    for level, entries in enumerate(LEVELS):
        for entry in entries:
            if name in entry.split(" + "):
                return level, entry
    for level, entries in enumerate(LEVELS):
        for entry in entries:
            if entry.endswith(".*") and (name + ".").startswith(entry[:-1]):
                return level, entry
    raise LookupError(f"gateway/{name.replace('.', '/')}.py has no level: say in LEVELS where it belongs")


@of("gateway")
def test_imports_run_down_only(module: Module) -> None:
    if module.name == "gateway":
        assert not list(module.imports())
        return
    own = module.name.removeprefix("gateway.")
    level, entry = level_of(own)
    wrong = []
    for imported in sorted(module.imported()):
        if top(imported) != "gateway" or imported in ("gateway", "gateway.engines"):
            continue
        other = imported.removeprefix("gateway.")
        its_level, its_entry = level_of(other)
        if its_level > level or (
            its_level == level and its_entry != entry and not {other, its_entry} & MAY_KNOW.get(own, set())
        ):
            wrong.append(other)
    assert not wrong, f"{own} (level {level}) imports {', '.join(wrong)}"


def test_the_table_names_no_module_that_is_gone() -> None:
    known = {module.name.removeprefix("gateway.") for module in MODULES}
    named = {name for entries in LEVELS for entry in entries for name in entry.split(" + ")}
    assert {name for name in named if name.removesuffix(".*") not in known} == set()


def test_no_imports_run_in_a_circle() -> None:
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " > ".join((*path, name))
        if name not in done:
            for imported in BY_NAME[name].imported() & NAMES:
                if not is_for_types_only(BY_NAME[name], imported):
                    walk(imported, (*path, name))
            done.add(name)

    for module in MODULES:
        walk(module.name, ())


@cache
def guarded_in(module: Module) -> set[int]:
    """Give what stands under `if TYPE_CHECKING`, by identity."""
    return {
        id(node)
        for block in module.nodes
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in ast.walk(block)
    }


def is_for_types_only(module: Module, imported: str) -> bool:
    """Whether a module is imported under `if TYPE_CHECKING` alone."""
    guarded = guarded_in(module)
    places = [
        id(node)
        for node in module.nodes
        if isinstance(node, ast.ImportFrom)
        and (node.module == imported or any(f"{node.module}.{alias.name}" == imported for alias in node.names))
    ]
    return bool(places) and all(place in guarded for place in places)


# What only one may do.


@of("gateway")
def test_what_one_module_hides_no_other_imports(module: Module) -> None:
    for hidden, allowed in ONLY_IN.items():
        uses = {name for name in module.imported() if (name + ".").startswith(hidden + ".")}
        assert not uses or module.name in allowed, f"{module.name} imports {hidden}"


@of("gateway", "policies")
def test_only_the_configuration_reads_the_environment(module: Module) -> None:
    if module.name == "gateway.config":
        return
    reads = {node.attr for node in module.nodes if isinstance(node, ast.Attribute)} & {"environ", "getenv"}
    assert not reads
    assert not {name for source, name in module.imports() if source == "os"} & {"environ", "getenv"}


@of("gateway", "policies")
def test_refusals_are_worded_in_one_place(module: Module) -> None:
    if module.name == "gateway.errors":
        return
    refusals = {node.name for node in ast.walk(parsed(ROOT / "gateway/errors.py")) if isinstance(node, ast.ClassDef)}
    for node in module.nodes:
        if isinstance(node, ast.ClassDef):
            assert not {ast.unparse(base).rpartition(".")[2] for base in node.bases} & refusals


@of("gateway")
def test_only_fleet_and_probe_move_an_endpoints_health(module: Module) -> None:
    if module.name in HEALTH_WRITERS:
        return
    for node in module.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in HEALTH_EVENTS:
            assert not ast.unparse(node.func.value).endswith(".health")


def called(node: ast.Call) -> str:
    return ast.unparse(node.func).rpartition(".")[2]


# Files.


@each_module
def test_a_file_is_short(module: Module) -> None:
    assert module.lines <= MAX_LINES


@each_module
def test_a_module_opens_with_a_docstring(module: Module) -> None:
    assert ast.get_docstring(module.tree)


def test_the_rules_see_the_whole_house() -> None:
    assert {"policies.spread", "gateway.proxy", "gateway.engines.vllm", "loadtests.engine"} <= NAMES
