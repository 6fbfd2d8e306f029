"""Rules about who may include whom: the walls of the house."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tree import Findings, Tree, is_cpp, is_python, numbered_lines

# Folder -> what of ours it may include. The longest folder that fits a file counts.
MAY_INCLUDE = {
    "ipc/": ("ipc/",),
    "ipc/base/": ("ipc/base/",),
    "transport/": ("transport/", "ipc/base/"),
    "service/": ("service/", "ipc/", "transport/"),
    "service/plan/": ("service/plan/", "ipc/base/", "ipc/profile.h"),  # also headrace-plan, in tool/
    "service/schedule/": ("service/schedule/", "ipc/base/"),
    "client/": ("client/", "ipc/", "headrace/"),
    # Memory of GPUs is a library of its own, which the client links without the transports.
    "client/lib/": ("client/", "ipc/", "transport/memory/", "headrace/"),
    "tests/": ("",),
}

# Foreign header -> where it may be included. Tests may include all.
FOREIGN_HOMES = {
    r"(kj|capnp)/|ipc/schema/": (
        "service/loop/",
        "service/rpc/",
        "service/peers/",
        "service/http/",
        "client/lib/connection.cc",
        "client/lib/connection_loop.h",
        "client/lib/connection_loop.cc",
        "client/cli/ctl/control.cc",
    ),
    r"hwy/": ("transport/codec/", "transport/reduce/"),
    r"boost/interprocess/": ("ipc/", "service/"),
    r"n?curses": ("client/cli/ctl/top/terminal.cc",),
    r"(spdlog|prometheus)/": ("service/",),
    r"torch/|Python\.h|pybind11/": (),
    r"(cuda|nccl|ucp|uct|ucs)[\w/]*\.h": (
        "transport/memory/",
        "transport/nvlink/",
        "transport/nccl/",
        "transport/ucx/",
    ),
}

PURE_FOLDERS = ("service/accounts/", "service/plan/", "service/schedule/", "service/cluster/")
# Passes on the channel and the doorbell of a session, which it neither opens nor reads.
CARRIES_DESCRIPTORS = "service/accounts/leases.h"
IMPURE_PROGRAM = "service/plan/tool/"  # headrace-plan reads and writes files
IMPURE = re.compile(
    r"#include\s*<(thread|atomic|mutex|shared_mutex|condition_variable|future|stop_token|semaphore"
    r"|barrier|latch|fstream|filesystem|iostream|cstdio|ctime|random|spdlog/.*|unistd\.h"
    r"|sys/.*|time\.h|pthread\.h)>"
    r"|#include\s*<(kj|capnp)/"
    r"|\b(system_clock|steady_clock|high_resolution_clock|clock_gettime|getenv|MonotonicNow)\b"
    r"|\bstd::(c?rand|random_device|thread|jthread|atomic|atomic_ref|mutex)\b"
)

DESCRIPTOR = re.compile(r"#include\s*\"ipc/base/fd\.h\"")

TRANSPORT_HOMES = (
    "service/daemon.cc",
    "service/daemon_transports.cc",
    "service/daemon_transports.h",
)
CONCRETE_TRANSPORT = re.compile(
    r"transport/(shm|nvlink|nccl|ucx)/|\b\w+Transport>\("
)

GETENV_HOMES = ("service/config/invocation.cc", "client/lib/api_session.cc", "tests/")

# Sets of test modules that include each other. No module may join one, and none may be added.
KNOWN_CYCLES = (
    {"tests/support/loopback/simulated_end", "tests/support/loopback/simulated_wire"},
    {"tests/sim/lines", "tests/sim/simulated_service"},
    {"tests/support/nccl_double/companions", "tests/support/nccl_double/rank"},
)

# Folders in which Python's modules are looked for after the folder of the importing file, as PYTHONPATH and
# sys.path of the programs have it.
PYTHON_ROOTS = ("client/python/", "tests/", "tests/bench/", "tests/support/")
PYTHON_CHECKED = ("client/python/headrace/", "tests/support/", "tests/bench/")

INCLUDE = re.compile(r"^\s*#\s*include\s*([<\"])([^>\"]+)[>\"]")


def _includes(tree: Tree) -> list[tuple[str, int, str]]:
    return [
        (path, number, match.group(2))
        for path, text in tree.items()
        if is_cpp(path)
        for number, line in numbered_lines(text)
        if (match := INCLUDE.match(line))
    ]


def folders_include_only_what_they_may(tree: Tree) -> Findings:
    """Client and service meet only in ipc; transport knows ipc/base and nothing else."""
    tops = tuple(folder for folder in MAY_INCLUDE if folder.count("/") == 1)
    findings = []
    for path, number, header in _includes(tree):
        home = max(
            (folder for folder in MAY_INCLUDE if path.startswith(folder)),
            key=len,
            default=None,
        )
        ours = header.startswith(tops)
        if home and ours and not header.startswith(MAY_INCLUDE[home]):
            findings.append(f"{path}:{number}: {home} may not include {header}")
    return findings


def foreign_headers_stay_in_their_homes(tree: Tree) -> Findings:
    """kj, Cap'n Proto and vendors' headers are included only by the folder that owns them."""
    findings = []
    for path, number, header in _includes(tree):
        if path.startswith("tests/"):
            continue
        for pattern, homes in FOREIGN_HOMES.items():
            if re.match(pattern, header) and not path.startswith(homes):
                findings.append(
                    f"{path}:{number}: {header} belongs to {', '.join(homes) or 'nobody'}"
                )
    return findings


def what_decides_is_pure(tree: Tree) -> Findings:
    """No thread, clock, file, log or atomic: that is what makes them fit for simulation."""
    return [
        f"{path}:{number}: not pure: {line.strip()}"
        for path, text in tree.items()
        if is_cpp(path) and path.startswith(PURE_FOLDERS) and not path.startswith(IMPURE_PROGRAM)
        for number, line in numbered_lines(text)
        if IMPURE.search(line.split("//")[0])
        or (DESCRIPTOR.search(line) and path != CARRIES_DESCRIPTORS)
    ]


# From the bottom up. A folder of the service includes those before it; messages.h, which actors that answer each
# other include of each other, stands below all of them.
SERVICE_ORDER = (
    "actor",
    "session",
    "plan",
    "schedule",
    "config",
    "log",
    "cluster",
    "accounts",
    "loop",
    "lane",
    "watch",
    "mapping",
    "dispatch/job",
    "dispatch/lanes",
    "dispatch/observe",
    "dispatch/blocks",
    "dispatch/intake",
    "dispatch",
    "http",
    "peers",
    "rpc",
)


def _level(path: str) -> int:
    """The place in SERVICE_ORDER; what lies in service/ itself, the daemon, stands above all."""
    folders = path.removeprefix("service/").rpartition("/")[0].split("/")
    while folders:
        if (folder := "/".join(folders)) in SERVICE_ORDER:
            return SERVICE_ORDER.index(folder)
        folders.pop()
    return len(SERVICE_ORDER)


def services_folders_include_downwards(tree: Tree) -> Findings:
    """Includes between folders of the service go down the list in which they stand, and each stands in it."""
    findings = [
        f"{path}: its folder has no place in SERVICE_ORDER"
        for path in tree
        if is_cpp(path)
        and path.startswith("service/")
        and path.count("/") > 1
        and _level(path) == len(SERVICE_ORDER)
    ]
    for path, number, header in _includes(tree):
        ours = path.startswith("service/") and header.startswith("service/")
        if ours and not header.endswith("/messages.h") and _level(header) > _level(path):
            findings.append(f"{path}:{number}: {header} stands above it")
    return findings


# A function that reads a job takes it as const: what observes changes nothing.
CHANGES_JOB = re.compile(r"(?<!const )\bJobs?&")


def observers_read_only(tree: Tree) -> Findings:
    """What people read is made of jobs that it does not change."""
    return [
        f"{path}:{number}: takes a job that it may change: {line.strip()}"
        for path, text in tree.items()
        if path.startswith("service/dispatch/observe/") and path.endswith(".h")
        for number, line in numbered_lines(text)
        if CHANGES_JOB.search(line.split("//")[0])
    ]


def only_the_daemon_names_transports(tree: Tree) -> Findings:
    """service/daemon*.cc build everything; the rest of the service knows the contract."""
    return [
        f"{path}:{number}: names a concrete transport: {line.strip()}"
        for path, text in tree.items()
        if is_cpp(path) and path.startswith("service/") and path not in TRANSPORT_HOMES
        for number, line in numbered_lines(text)
        if CONCRETE_TRANSPORT.search(line.split("//")[0])
    ]


def environment_is_read_at_start_only(tree: Tree) -> Findings:
    """getenv stands in the configuration and the client's start-up, and nowhere else."""
    return [
        f"{path}:{number}: reads the environment: {line.strip()}"
        for path, text in tree.items()
        if is_cpp(path) and not path.startswith(GETENV_HOMES)
        for number, line in numbered_lines(text)
        if re.search(r"\bgetenv\s*\(", line.split("//")[0])
    ]


def _module_of(path: str) -> str:
    return re.sub(r"\.(h|cc|c)$", "", path)


def _folder_of(path: str) -> str:
    """Actors that answer each other include each other's messages, which are therefore a folder of their own."""
    return path if path.endswith("/messages.h") else path.rpartition("/")[0]


def _rings(graph: dict[str, set[str]]) -> list[list[str]]:
    """The sets of two or more nodes from each of which one comes to all of the others (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = lowest[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
            if other in stack:
                lowest[node] = min(lowest[node], lowest[other])
        if lowest[node] == index[node]:
            ring = stack[stack.index(node) :]
            del stack[-len(ring) :]
            if len(ring) > 1:
                found.append(sorted(ring))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def _imports_at_start(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports that run with the module, not those in functions or for the type checker only."""
    for statement in body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            yield statement
        elif isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.dump(statement.test):
            yield from _imports_at_start(statement.orelse)
        elif not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for part in ("body", "orelse", "finalbody"):
                inner = getattr(statement, part, [])
                yield from _imports_at_start(inner if isinstance(inner, list) else [])
            for handler in getattr(statement, "handlers", []):
                yield from _imports_at_start(handler.body)


def _python_module(tree: Tree, folders: list[str], name: str) -> str | None:
    """The file of the module of that dotted name in the first of the folders that has it."""
    stem = name.replace(".", "/")
    for folder in folders:
        for path in (f"{folder}{stem}.py", f"{folder}{stem}/__init__.py".replace("//", "/")):
            if path in tree:
                return path
    return None


def _imported(tree: Tree, path: str, statement: ast.Import | ast.ImportFrom) -> set[str]:
    """The files of ours that an import statement of `path` runs."""
    folders = [path.rpartition("/")[0] + "/", *PYTHON_ROOTS]
    if isinstance(statement, ast.Import):
        found = {_python_module(tree, folders, alias.name) for alias in statement.names}
    else:
        if statement.level:
            folders = ["/".join(path.split("/")[: -statement.level]) + "/"]
        base = statement.module or ""
        found = set()
        for alias in statement.names:
            inner = _python_module(tree, folders, f"{base}.{alias.name}".lstrip("."))
            found.add(inner or _python_module(tree, folders, base))
    return {file for file in found if file is not None and file != path}


def imports_have_no_cycle(tree: Tree) -> Findings:
    """Python's modules do not import each other in a circle when they are loaded."""
    graph: dict[str, set[str]] = {}
    for path, text in tree.items():
        if path.startswith(PYTHON_CHECKED) and is_python(path, text):
            for statement in _imports_at_start(ast.parse(text).body):
                graph.setdefault(path, set()).update(_imported(tree, path, statement))
    return [
        f"{', '.join(ring)} import each other: take what they share to a module of its own"
        for ring in _rings(graph)
    ]


def includes_have_no_cycle(tree: Tree) -> Findings:
    """Neither modules (the header and source of one name) nor folders include each other in a circle.

    Folders of tests may: a test uses what stands beside another one.
    """
    modules: dict[str, set[str]] = {}
    folders: dict[str, set[str]] = {}
    for path, _, header in _includes(tree):
        if header not in tree:
            continue
        here, there = _module_of(path), _module_of(header)
        if here != there:
            modules.setdefault(here, set()).add(there)
        here, there = _folder_of(path), _folder_of(header)
        if here != there and not path.startswith("tests/"):
            folders.setdefault(here, set()).add(there)
    return [
        f"{', '.join(ring)} include each other: take what they share to a header of its own"
        for ring in _rings(modules) + _rings(folders)
        if not any(set(ring) <= known for known in KNOWN_CYCLES)
    ]


RULES = {
    imports_have_no_cycle: (
        {
            "client/python/headrace/__init__.py": "from .a import f\n",
            "client/python/headrace/a.py": "import os\n\ndef f():\n    from . import b\n",
            "client/python/headrace/b.py": "from headrace.a import f\n",
            "tests/bench/c.py": "if TYPE_CHECKING:\n    import d\n",
            "tests/bench/d.py": "from c import g\n",
        },
        [
            {
                "client/python/headrace/a.py": "from .b import f\n",
                "client/python/headrace/b.py": "from headrace import a\n",
            },
            {
                "client/python/headrace/torch/__init__.py": "from .a import f\n",
                "client/python/headrace/torch/a.py": "import headrace.torch\n",
            },
            {
                "tests/bench/a.py": "try:\n    import b\nexcept ImportError:\n    b = None\n",
                "tests/bench/b.py": "from support.c import f\n",
                "tests/support/c.py": "import a\n",
            },
        ],
    ),
    folders_include_only_what_they_may: (
        {"service/plan/a.h": '#include "service/plan/b.h"\n#include <vector>\n'},
        [
            {"client/lib/a.cc": '#include "service/config/config.h"\n'},
            {"client/cli/a.cc": '#include "service/plan/plan.h"\n'},
            {"client/lib/a.cc": '#include "transport/shm/shm.h"\n'},
            {"client/cli/ctl/a.cc": '#include "transport/memory/gpus.h"\n'},
            {"service/a.cc": '#include "client/lib/session.h"\n'},
            {"transport/a.h": '#include "ipc/records.h"\n'},
            {"service/plan/a.h": '  #  include "transport/transport.h"\n'},
            {"ipc/base/a.h": '#include "ipc/channel.h"\n'},
        ],
    ),
    foreign_headers_stay_in_their_homes: (
        {
            "service/rpc/a.h": "#include <kj/async.h>\n",
            "tests/a.cc": "#include <capnp/rpc.h>\n",
        },
        [
            {"service/dispatch/a.h": "#include <kj/async.h>\n"},
            {"client/lib/session.cc": '#include "ipc/schema/client.capnp.h"\n'},
            {"transport/shm/a.cc": "#include <hwy/highway.h>\n"},
            {"client/cli/ctl/main.cc": "#include <ncurses.h>\n"},
            {"service/lane/a.cc": "#include <cuda.h>\n"},
        ],
    ),
    services_folders_include_downwards: (
        {
            "service/cluster/a.h": '#include "service/config/a.h"\n#include "service/rpc/messages.h"\n',
            "service/dispatch/a.h": '#include "service/dispatch/intake/a.h"\n#include <a/b.h>\n',
            "service/plan/tool/a.cc": '#include "service/plan/a.h"\n',
            "service/a.cc": '#include "service/rpc/a.h"\n#include "transport/a.h"\n',
        },
        [
            {"service/cluster/a.h": '#include "service/watch/a.h"\n'},
            {"service/dispatch/job/a.h": '#include "service/dispatch/observe/a.h"\n'},
            {"service/dispatch/intake/a.cc": '#include "service/dispatch/a.h"\n'},
            {"service/peers/a.h": '#include "service/daemon.h"\n'},
            {"service/new/a.h": ""},
        ],
    ),
    observers_read_only: (
        {
            "service/dispatch/observe/a.h": "void F(const Job& job, const Jobs& jobs);  // no Job&\n",
            "service/dispatch/observe/a.cc": "void F(Job& job);\n",
            "service/dispatch/blocks/a.h": "void F(Job& job);\n",
        },
        [
            {"service/dispatch/observe/a.h": "  void F(int a, Job& job);\n"},
            {"service/dispatch/observe/a.h": "  explicit A(Jobs& jobs);\n"},
        ],
    ),
    what_decides_is_pure: (
        {
            "service/accounts/leases.h": '#include "ipc/base/fd.h"\n',
            "service/plan/a.h": "// no std::thread here\n#include <vector>\n",
            "service/plan/tool/a.cc": "#include <fstream>\n",
            "service/a.cc": "#include <thread>\n",
        },
        [
            {"service/schedule/a.h": "#include <atomic>\n"},
            {"service/plan/a.cc": "auto t = std::chrono::steady_clock::now();\n"},
            {"service/plan/a.cc": "#include <spdlog/spdlog.h>\n"},
            {"service/plan/a.cc": "#include <fstream>\n"},
            {"service/cluster/a.h": "#include <kj/async.h>\n"},
            {"service/cluster/a.h": '#include "ipc/base/fd.h"\n'},
            {"service/accounts/quotas.h": '#include "ipc/base/fd.h"\n'},
            {"service/accounts/a.cc": "#include <ctime>\n"},
            {"service/cluster/a.cc": "const TimeNs now = MonotonicNow();\n"},
        ],
    ),
    only_the_daemon_names_transports: (
        {"service/daemon.cc": '#include "transport/shm/shm_transport.h"\n'},
        [
            {"service/lane/a.cc": '#include "transport/shm/shm_transport.h"\n'},
            {"service/lane/a.cc": "auto t = std::make_unique<LoopbackTransport>();\n"},
        ],
    ),
    environment_is_read_at_start_only: (
        {
            "service/config/invocation.cc": 'std::getenv("A");\n',
            "service/a.cc": "// getenv(3) is not called\n",
        },
        [{"service/lane/lane.cc": 'const char* a = std::getenv("A");\n'}],
    ),
    includes_have_no_cycle: (
        {
            "service/a.h": '#include "service/b.h"\n',
            "service/a.cc": '#include "service/a.h"\n#include "service/c/d.h"\n',
            "service/b.h": "#include <vector>\n",
            "service/c/d.h": '#include "service/e/messages.h"\n',
            "service/e/f.h": '#include "service/c/d.h"\n',
            "service/e/messages.h": "",
            "tests/a/a.h": '#include "tests/b/b.h"\n',
            "tests/b/b.h": '#include "tests/a/c.h"\n',
            "tests/a/c.h": "",
            "tests/sim/lines.h": '#include "tests/sim/simulated_service.h"\n',
            "tests/sim/simulated_service.h": '#include "tests/sim/lines.h"\n',
        },
        [
            {
                "service/a.h": '#include "service/b.h"\n',
                "service/b.h": "",
                "service/b.cc": '#include "service/a.h"\n',
            },
            {
                "service/a.h": '#include "service/c/d.h"\n',
                "service/c/d.h": "",
                "service/c/e.h": '#include "service/f.h"\n',
                "service/f.h": "",
            },
            {
                "tests/a.h": '#include "tests/b.h"\n',
                "tests/b.h": '#include "tests/a.h"\n',
            },
            {
                "tests/sim/lines.h": '#include "tests/sim/simulated_service.h"\n',
                "tests/sim/simulated_service.h": '#include "tests/sim/new.h"\n',
                "tests/sim/new.h": '#include "tests/sim/lines.h"\n',
            },
        ],
    ),
}
