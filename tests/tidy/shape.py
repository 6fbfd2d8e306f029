"""Rules about the shape of the tree: what stands where, how long, and under which words."""

from __future__ import annotations

import ast
import re

from tree import Findings, Tree, is_cpp, is_python, numbered_lines

TOP_LEVEL = {
    "CMakeLists.txt",
    "CMakePresets.json",
    "README.md",
    "LICENSE",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "service",
    "client",
    "ipc",
    "transport",
    "tests",
    "containers",
}
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
# Written by programs or copied from other places.
NO_LENGTH_LIMIT = re.compile(r"^client/profiles/|^tests/(.*/)?golden/|_corpus/|\.json$")

WORDS = re.compile(r"worker|chunk|bucket|shard|communicator", re.IGNORECASE)
# What others named, and we must call by that name; taken away before the words are looked for.
NAMES_OF_OTHERS = re.compile(
    r"gradient_as_bucket_view|worker_process_setup_hook|GradBucket|bucket_cap_mb|num_workers|ucp_worker\w*|"
    r"DDP's buckets|fully_shard\w*|torch\.sharded|ShardedOptimizer|"
    r"DataLoader worker|8 workers|^ +Worker:(?: \*replica)?$|training-worker-\d|nccl[ _]?communicator|worker[ _]?pool|"
    r"Transfer-Encoding: chunked",
    re.IGNORECASE,
)
# Files that speak of a foreign interface all the time, and this rule's own.
WORDS_ALLOWED = {
    r"^tests/tidy/": "names the words it looks for",
    r"^client/python/headrace/torch/((compressed_|planned_)?ddp|ddp_buckets)\.py$": "DDP posts or gives a hook buckets",
    r"^client/python/headrace/torch/sharded\.py$": "fully_shard calls parts of parameters shards",
    r"^tests/.*(ddp|torch)\w*\.py$": "tests that hook",
    r"^tests/golden/torch/": "names of torch's own tests",
}

# Names that were metaphors, or meant several things, and what stands for them now. Whole names of types and files.
REPLACED = {
    "Company": "RecentUsers",
    "Crew": "WorkerPool",
    "Deed": "Action",
    "Desk": "a thin kj layer and a pure half",
    "Door": "CallGate",
    "Entrance": "Bootstrap",
    "Gate": "SendPacer, or what it holds up",
    "Helm": "AdminRequests",
    "Inquiry": "WaitQuery",
    "Inside": "CallScope",
    "Late": "StragglerMonitor",
    "Ledger": "MemoryAccounting, or what it checks",
    "NcclCast": "NcclCommunicatorCache",
    "NcclSeat": "NcclRank",
    "NcclSeating": "NcclRank",
    "NoControl": "DisconnectedControl",
    "Patient": "DiagnosticInput",
    "Performance": "ReplayResult",
    "Player": "ReplayRank",
    "Pulse": "Heartbeat",
    "Roster": "RankTable",
    "Score": "ReplayConfig",
    "Seat": "RankSlot",
    "Steersman": "JobSettings",
    "Wish": "a request, or a setting change",
    "Wishes": "AdminRequests",
    "Witness": "FailureEvidence",
}
REPLACED_TYPE = re.compile(
    rf"\b(?:class|struct|enum(?: class)?)\s+({'|'.join(REPLACED)}|\w+(?:Notes|Wish))\b(?!\s*;)"
)
# In programs: functions whose name is a verb that says nothing, or was one of these.
REPLACED_FUNCTION = re.compile(
    r"^\s*(?:[\w:<>,&*\[\]]+\s+)+(?:\w+::)?"
    r"(Take|Tell|Say|Give|Come|Go|Look|Hear|Meet|(?:Hear|Tell|Say)[A-Z]\w*|TakeErrands|TakeWish"
    r"|BlockMoves|BlockRests)\((?!\))"
)
PROGRAMS = ("client/lib/", "client/cli/", "ipc/", "service/", "transport/")

QUESTION = re.compile(r"^# .+\?$")


def top_level_holds_exactly_these(tree: Tree) -> Findings:
    """A person who opens the project sees what it consists of, and nothing besides."""
    entries = {path.split("/")[0] for path in tree}
    return [
        f"{entry}: does not belong to the top level"
        for entry in sorted(entries - TOP_LEVEL)
        if not entry.startswith(".")
    ] + [f"{entry}: is not there" for entry in sorted(TOP_LEVEL - entries)]


def _counted(path: str, text: str) -> int:
    """The comments of a public header are its manual, and count as no code."""
    if path.startswith("client/include/"):
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    return len(text.splitlines())


def files_are_short(tree: Tree) -> Findings:
    """No file over 600 lines."""
    return [
        f"{path}: {count} lines, {FILE_LINES_MAX} are the most"
        for path, text in tree.items()
        if (count := _counted(path, text)) > FILE_LINES_MAX
        and not NO_LENGTH_LIMIT.search(path)
    ]


def _statement_indent(lines: list[str], index: int) -> int:
    """Indentation of the first line of the statement that ends in lines[index]: a declaration may
    run over several, with the members' initialisers and comments between them."""
    first = index
    for above in range(index - 1, -1, -1):
        line = lines[above].strip()
        if (
            not line
            or line.startswith("#")
            or line.endswith((";", "{", "}", "public:", "private:"))
        ):
            break
        if not line.startswith("//"):
            first = above
    return len(lines[first]) - len(lines[first].lstrip())


def _cpp_functions(text: str) -> list[tuple[int, int]]:
    """(first line, line count) of function bodies in clang-formatted code: what begins with a line
    that ends in { after a parameter list, and ends with a } as far in as its statement began."""
    lines = text.splitlines()
    found = []
    start, indent = 0, 0
    for number, line in enumerate(lines, 1):
        if start:
            if line.rstrip() in (" " * indent + "}", " " * indent + "};"):
                found.append((start, number - start + 1))
                start = 0
        elif re.search(r"\)[^()=;]*\{$|^\s+: .*\{$|\}\s*\{$", line) and not re.match(
            r"\s*(//|(namespace|class|struct|enum|union|extern)\b)", line
        ):
            start, indent = number, _statement_indent(lines, number - 1)
    return found


def functions_are_short(tree: Tree) -> Findings:
    """No function over 70 lines, in C, C++ and Python."""
    findings = []
    for path, text in tree.items():
        functions: list[tuple[int, int]] = []
        if is_cpp(path):
            functions = _cpp_functions(text)
        elif is_python(path, text):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    functions.append(
                        (node.lineno, (node.end_lineno or 0) - node.lineno + 1)
                    )
        findings += [
            f"{path}:{start}: a function of {count} lines, {FUNCTION_LINES_MAX} are the most"
            for start, count in functions
            if count > FUNCTION_LINES_MAX
        ]
    return findings


def one_word_for_one_thing(tree: Tree) -> Findings:
    """Block, job, rank, lane: not the words that other projects use for several things at once."""
    findings = []
    for path, text in tree.items():
        if any(re.search(allowed, path) for allowed in WORDS_ALLOWED) or path.endswith(
            ".json"
        ):
            continue
        for number, line in numbered_lines(text):
            if match := WORDS.search(NAMES_OF_OTHERS.sub("", line)):
                findings.append(
                    f'{path}:{number}: says "{match.group(0)}": {line.strip()[:80]}'
                )
    return findings


def _stem_of(path: str) -> str:
    """The name of a type as its file spells it: rank_slot_test.cc is of RankSlot."""
    return re.sub(r"(_test)?\.\w+$", "", path.rpartition("/")[2]).title().replace("_", "")


def words_that_were_replaced(tree: Tree) -> Findings:
    """Types, files and functions have no name that another has taken the place of."""
    findings = []
    for path, text in tree.items():
        if not (is_cpp(path) or is_python(path, text)) or path.startswith("tests/tidy/"):
            continue
        if (stem := _stem_of(path)) in REPLACED:
            findings.append(f"{path}: is now called {REPLACED[stem]}")
        for number, line in numbered_lines(text):
            code = line.split("//")[0]
            if match := REPLACED_TYPE.search(code):
                now = REPLACED.get(match[1], "a request, or a state")
                findings.append(f"{path}:{number}: {match[1]} is now called {now}")
            match = REPLACED_FUNCTION.match(code) if path.startswith(PROGRAMS) else None
            if match and not re.match(r"\s*(return|else|co_return)\b", code):
                findings.append(f"{path}:{number}: {match[1]} does not say what the function does")
    return findings


def comments_name_their_subject(tree: Tree) -> Findings:
    """A comment that opens with "Of" makes its reader look for what it is about."""
    return [
        f"{path}:{number}: opens with what it is of: say what it is first: {line.strip()[:80]}"
        for path, text in tree.items()
        if path.startswith(PROGRAMS)
        for number, line in numbered_lines(text)
        if re.match(r"\s*// Of [a-z]", line)
    ]


def folders_open_with_their_question(tree: Tree) -> Findings:
    """Each top folder has a README that opens with the question it answers; each folder below has
    one of its own, or stands in that of the folder above it."""
    folders = {
        path.rsplit("/", depth)[0]
        for path in tree
        for depth in range(1, path.count("/") + 1)
    }
    findings = []
    for folder in sorted(folders):
        if folder.startswith("."):
            continue
        own = tree.get(f"{folder}/README.md")
        above, _, name = folder.rpartition("/")
        if own is not None:
            if not own or not QUESTION.match(own.splitlines()[0]):
                findings.append(
                    f'{folder}/README.md: does not open with "# name: a question?"'
                )
        elif not above:
            findings.append(f"{folder}: has no README.md")
        elif (
            f"{above}/README.md" in tree
            and f"{name}/" not in tree[f"{above}/README.md"]
        ):
            findings.append(
                f"{folder}: has no README.md, and {above}/README.md does not speak of it"
            )
    return findings


# Definitions begin in the first column: a type, the class with its scopes, the function's name.
MEMBER = re.compile(
    r"^(?!\s|#|//|\}|namespace\b|using\b|static_assert\b|return\b)[^=(\n]*?(?<![\w:])((?:[A-Z]\w*::)+)~?\w+\(",
    re.MULTILINE,
)
# Split for now; each is to become several classes.
SPLIT_CLASSES = {
    ("client/lib", "Session"): "its ways back to a service (session_reconnect.cc) change everything it has",
    ("tests/sim", "ClusterSimulation"): "its faults and its work draw from one seed, in one order",
}


def _members_of(text: str) -> set[str]:
    """Classes of which functions are defined: declarations, which end in a semicolon, do not count."""
    classes = set()
    for match in MEMBER.finditer(text):
        end = match.end()
        depth = 1
        while depth and end < len(text):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        if re.match(r"[^;{]*\{", text[end:]):
            classes.add(match[1].removesuffix("::"))
    return classes


def a_class_has_one_source(tree: Tree) -> Findings:
    """The functions of a class are defined in one file: one that does not fit has two jobs."""
    sources: dict[tuple[str, str], list[str]] = {}
    for path, text in sorted(tree.items()):
        if path.endswith(".cc"):
            for name in sorted(_members_of(text)):
                sources.setdefault((path.rpartition("/")[0], name), []).append(path)
    return [
        f"{name}: its functions are defined in {' and '.join(paths)}"
        for (folder, name), paths in sources.items()
        if len(paths) > 1 and (folder, name) not in SPLIT_CLASSES
    ]


def headers_are_included_once(tree: Tree) -> Findings:
    """Every C++ header has #pragma once; a C header has a guard."""
    return [
        f"{path}: may be included twice"
        for path, text in tree.items()
        # Highway includes an -inl.h once for every instruction set.
        if path.endswith(".h")
        and not path.endswith("-inl.h")
        and not re.search(r"^#pragma once$|^#ifndef \w+_H_?$", text, re.MULTILINE)
    ]


# These return a subrange, a view, which clang 14 cannot compile with the library of g++ 12.
RETURNS_VIEW = re.compile(
    r"\bstd::(?:ranges::(?:remove|remove_if|unique|partition|stable_partition|rotate|search|search_n"
    r"|find_end|equal_range|views|subrange)|views)\b"
)


def both_compilers_know_the_algorithms(tree: Tree) -> Findings:
    """No view of a range: g++ 12 compiles it, clang 14, which builds under sanitizers, does not."""
    return [
        f"{path}: {match[0]}: clang 14 cannot compile it, use the algorithm of two iterators"
        for path, text in tree.items()
        if is_cpp(path)
        for match in RETURNS_VIEW.finditer(text)
    ]


_TOP = {entry if "." in entry or entry.isupper() else f"{entry}/a.h": "" for entry in TOP_LEVEL}
_LONG = "x\n" * (FILE_LINES_MAX + 1)
_BODY = "  f();\n" * FUNCTION_LINES_MAX

RULES = {
    top_level_holds_exactly_these: (
        {**_TOP, ".ci/run": ""},
        [
            {**_TOP, "docs/a.md": ""},
            {**_TOP, "Makefile": ""},
            {path: "" for path in _TOP if path != "LICENSE"},
        ],
    ),
    files_are_short: (
        {"ipc/a.h": "x\n" * FILE_LINES_MAX, "client/include/a.h": "x\n/*\n" + _LONG + "*/\n"},
        [{"ipc/a.h": _LONG}, {"README.md": _LONG}, {"client/include/a.h": _LONG}],
    ),
    functions_are_short: (
        {
            "ipc/a.cc": "namespace a {\n" + _BODY + "}\nint F() {\n  g();\n}\n",
            "ipc/b.cc": "A::A()\n    // Why.\n    : a_(1),\n      b_(2) {\n  g();\n}\n"
            + _BODY,
        },
        [
            {"ipc/a.cc": "int F(int a) {\n" + _BODY + "}\n"},
            {"ipc/a.h": "class A {\n  int F(int a) const {\n" + _BODY + "  }\n};\n"},
            {"ipc/a.cc": "A::A(int a)\n    : a_(a) {\n" + _BODY + "}\n"},
            {
                "ipc/a.cc": "int F() {\n  g();\n}\n\nA::A(int a)\n    : a_(a),\n      b_(a) {\n"
                + _BODY
                + "}\n"
            },
            {"client/a.py": "def f():\n" + _BODY.replace(";", "")},
        ],
    ),
    one_word_for_one_thing: (
        {
            "a.py": "DDP(model, gradient_as_bucket_view=True)",
            "client/python/headrace/torch/ddp.py": "bucket",
            "transport/a.h": "class WorkerPool; class NcclCommunicatorCache;",
        },
        [
            {"transport/a.h": "class Worker; // of the communicator"},
            {"ipc/a.h": "int chunk_size;"},
            {"README.md": "Each worker"},
            {"a.py": "gradient_buckets"},
        ],
    ),
    words_that_were_replaced: (
        {
            "service/a.cc": "// class Desk\nstruct RankSlot {};\nvoid OnRankLate(int rank);\n  return Tell(1);\n",
            "tests/a.cc": "void Tell(int a);\n",
            "client/lib/call_gate.h": "class CallGate;\n",
        },
        [
            {"service/a.h": "class Desk {\n"},
            {"tests/sim/a.h": "  struct Seat {\n"},
            {"service/dispatch/a.h": "struct SlowNotes {\n"},
            {"tests/unit/a.h": "struct AttachWish {\n"},
            {"tests/sim/ledger.cc": ""},
            {"tests/unit/late_test.cc": ""},
            {"service/a.h": "  void TellRank(const Job& job);\n"},
            {"service/a.cc": "bool Leader::Hear(Message message) {\n"},
            {"client/a.py": "class Wish: pass\n"},
        ],
    ),
    comments_name_their_subject: (
        {"ipc/a.h": "// Bytes of a block.\nint a;  // of all\n", "tests/a.cc": "// Of one.\n"},
        [{"service/a.h": "  // Of a block.\n"}, {"transport/a.cc": "// Of what is finite.\n"}],
    ),
    folders_open_with_their_question: (
        {"ipc/README.md": "# ipc: what?\n`base/`", "ipc/base/a.h": "", ".ci/run": ""},
        [
            {"ipc/a.h": ""},
            {"ipc/README.md": "# ipc\n"},
            {"ipc/README.md": "# ipc: what?\n", "ipc/base/a.h": ""},
        ],
    ),
    a_class_has_one_source: (
        {
            "ipc/a.cc": "A::A(int a)\n    : a_(a) {\n  B::F();\n}\nstd::vector<int> A::F(\n    int a) const {\n}\n",
            "ipc/b.cc": "B::B() {}\nint A::G();\nconst A a = A::F({});\n",
            "service/a.cc": "A::~A() {}\n",
        },
        [
            {"ipc/a.cc": "A::A() {}\n", "ipc/b.cc": "A::~A() {}\n"},
            {"ipc/a.cc": "void A::F() {\n}\n", "ipc/b.cc": "int* A::G(B b, int (*c)()) const {\n}\n"},
            {"ipc/a.cc": "A::B::B() {}\n", "ipc/b.cc": "Result<A::B> A::B::F() {\n}\n"},
        ],
    ),
    headers_are_included_once: (
        {"ipc/a.h": "// Why.\n#pragma once\n", "client/b.h": "#ifndef B_H\n"},
        [{"ipc/a.h": "int a;\n"}],
    ),
    both_compilers_know_the_algorithms: (
        {"ipc/a.cc": "std::rotate(a, b, c);\nstd::ranges::sort(a);\n", "a.md": "std::ranges::rotate"},
        [
            {"ipc/a.cc": "std::ranges::rotate(a, b);\n"},
            {"tests/a.h": "for (int i : std::views::iota(0))\n"},
        ],
    ),
}
