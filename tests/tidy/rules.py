"""The rules of the architecture that no compiler checks. Each returns one line for a violation.

An exception is a row in an allow-list below, with the reason; nothing is silenced in the code.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

from tree import CPP, TEXT, Tree, line_of

# --- what may include what --------------------------------------------------------------------

# Folder of csrc -> folders it may include besides itself. From the bottom up; nothing points back.
MAY_INCLUDE: dict[str, set[str]] = {
    "core/base": set(),
    "core/wire": {"core/base"},
    "core/negotiate": {"core/base", "core/wire"},
    "core/plan": {"core/base", "core/wire", "core/negotiate"},  # it plans negotiate's Responses
    "core/kernels": {"core/base", "core/wire"},
    "core/transport/tcp": {"core/base", "core/wire"},
}
MAY_INCLUDE["core/transport/local"] = {"core/base", "core/wire", "core/transport/tcp"}
MAY_INCLUDE["core/transport/dial"] = {"core/base", "core/wire", "core/transport/tcp"}
MAY_INCLUDE["core/transport/link"] = MAY_INCLUDE["core/transport/dial"] | {"core/transport/dial"}
TRANSPORT = {f"core/transport/{folder}" for folder in ("tcp", "local", "dial", "link", "join")}
MAY_INCLUDE["core/transport/join"] = {"core/base", "core/wire"} | TRANSPORT
MAY_INCLUDE["core/backend"] = set(MAY_INCLUDE)
# The parameter server's decisions, and its sockets.
MAY_INCLUDE["core/ps/decide"] = {"core/base", "core/wire", "core/plan", "core/kernels"}
MAY_INCLUDE["core/member"] = {"core/base", "core/wire"}
MAY_INCLUDE["core/trace"] = {"core/base", "core/wire"}
MAY_INCLUDE["core/engine"] = set(MAY_INCLUDE) - {"core/ps/decide", "core/member"}
MAY_INCLUDE["core/settings"] = {
    "core/base",
    "core/wire",
    "core/transport/tcp",
    "core/engine",
    "core/ps/decide",
}
MAY_INCLUDE["core/job"] = {
    "core/base",
    "core/wire",
    "core/trace",
    "core/engine",
    "core/settings",
    "core/member",
    "include",  # it implements the C++ API
} | TRANSPORT
MAY_INCLUDE["core/ps/io"] = {
    "core/base",
    "core/wire",
    "core/ps/decide",
    "core/settings",
    "core/trace",
} | TRANSPORT
MAY_INCLUDE["bin"] = {"core/base", "core/ps/decide", "core/ps/io", "core/settings"} | TRANSPORT
# The torch layer, from the bottom up. Its hooks copy, scale and cast a gradient in one pass, hence
# the kernels; a step is planned in runs, hence plan.
MAY_INCLUDE["ciranda/torch/tensor"] = {"core/base", "core/wire", "core/engine"}
MAY_INCLUDE["ciranda/torch/collective"] = {
    "include",
    "core/base",
    "core/wire",
    "core/engine",
    "ciranda/torch/tensor",
}
MAY_INCLUDE["ciranda/torch/process"] = {
    "include",
    "core/base",
    "core/trace",
    "core/kernels",
    "core/ps/decide",
    "core/member",
    "core/engine",
    "core/job",
    "core/ps/io",
    "ciranda/torch/tensor",
    "ciranda/torch/collective",
}
MAY_INCLUDE["ciranda/torch/elastic"] = {
    "core/base",
    "core/member",
    "ciranda/torch/tensor",
    "ciranda/torch/collective",
}
MAY_INCLUDE["ciranda/torch/step"] = {
    "include",
    "core/base",
    "core/wire",
    "core/plan",
    "core/kernels",
    "core/engine",
    "ciranda/torch/tensor",
    "ciranda/torch/collective",
    "ciranda/torch/process",
}
MAY_INCLUDE["ciranda/torch/gradient"] = {
    "core/base",
    "core/wire",
    "core/kernels",
    "core/engine",
    "ciranda/torch/tensor",
    "ciranda/torch/collective",
    "ciranda/torch/process",
    "ciranda/torch/step",
}
MAY_INCLUDE["ciranda/torch/optimizer"] = {
    "core/base",
    "core/plan",
    "core/kernels",
    "core/settings",
    "core/engine",
    "core/job",
    "ciranda/torch/tensor",
    "ciranda/torch/collective",
    "ciranda/torch/process",
    "ciranda/torch/step",
    "ciranda/torch/gradient",
}
MAY_INCLUDE["ciranda/torch/servers"] = {
    "core/base",
    "core/kernels",
    "core/ps/decide",
    "core/ps/io",
    "ciranda/torch/tensor",
    "ciranda/torch/process",
    "ciranda/torch/step",
    "ciranda/torch/gradient",
}
TORCH = {
    f"ciranda/torch/{folder}"
    for folder in (
        "tensor",
        "collective",
        "process",
        "elastic",
        "step",
        "gradient",
        "optimizer",
        "servers",
    )
}
MAY_INCLUDE["ciranda/torch/api"] = {"core/base", "core/member", "core/job", "include"} | TORCH
MAY_INCLUDE["bindings"] = {
    "core/base",
    "core/kernels",
    "core/engine",
    "core/ps/decide",
    "core/member",
    "core/job",
    "core/ps/io",
    "include",
} | TORCH
MAY_INCLUDE["bindings/launcher"] = {"core/base", "core/wire", "core/member"}
MAY_INCLUDE["include"] = set()  # installed: must compile without our source tree

# Decisions live here; the outside world comes in as arguments.
PURE_FOLDERS = (
    "core/wire",
    "core/negotiate",
    "core/plan",
    "core/kernels",
    "core/ps/decide",
    "core/member",
)
PURE_FILES = ("core/engine/run/joined", "core/engine/run/inline_data")
IMPURE_HEADERS = re.compile(
    r"^(sys/.*|unistd\.h|fcntl\.h|poll\.h|netinet/.*|arpa/.*|netdb\.h|pthread\.h|sched\.h|time\.h"
    r"|signal\.h|thread|chrono|mutex|shared_mutex|condition_variable|future|atomic|semaphore|barrier"
    r"|latch|random|ctime|iostream|fstream|filesystem|core/base/(clock|log|mutex|file)\.h)$"
)
IMPURE_ALLOWED = {
    ("core/kernels", "atomic"): "the instruction set is chosen once, by whichever thread is first; "
    "the journal of a step is shared by processes",
}
TORCH_HEADERS = re.compile(r"^(torch|ATen|c10|pybind11|Python\.h)(/|$)")

# --- allow-lists ------------------------------------------------------------------------------

# (what, pattern, where to look, {allowed path pattern: reason})
CPP_WORDS: list[tuple[str, str, dict[str, str]]] = [
    (
        "getenv",
        r"::getenv\b|(?<![\w.])getenv\s*\(|\benviron\b",
        {
            "csrc/core/settings/config.cc": "every knob of a rank is read in one place",
            "csrc/bin/ciranda_ps.cc": "those of a server, which is no rank, in another",
            "csrc/core/transport/join/origin.cc": "what other processes were born with, in /proc",
        },
    ),
    (
        "a thread",
        r"\bstd::j?thread\b|\bpthread_create\b|\bstd::async\b",
        {
            "csrc/core/base/thread.h": "starts all but those that a library needs",
            "csrc/core/engine/background_thread*": "drives where no user's thread does",
            "csrc/core/transport/link/beat_thread*": "says that a process lives as it computes",
            "csrc/core/transport/local/life_watch*": "the kernel tells the others when it ends",
            "csrc/core/transport/dial/connection_thread*": "accepts and dials while nobody drives",
            "csrc/core/backend/gloo/gloo_backend.cc": "Gloo's collectives block",
            "csrc/core/backend/nccl/nccl_communicator*": "NCCL may block at its end",
        },
    ),
    (
        "a mutex without annotations",
        r"\bstd::(recursive_|shared_|timed_)*mutex\b|\bstd::condition_variable|\bpthread_mutex_\w+"
        r"|\bstd::(lock_guard|unique_lock|scoped_lock)\b",
        {
            "csrc/core/base/mutex.h": "the annotated wrapper itself",
            "csrc/core/base/revocable_lock*": "lies in shared memory, and outlives its holder",
        },
    ),
    (
        "a way around the thread-safety analysis",
        r"\bno_thread_safety_analysis\b",
        {"csrc/core/engine/seat.h": "where there is no other thread"},
    ),
    (
        "wall-clock time",
        r"\bsystem_clock\b|\bgettimeofday\b|\bCLOCK_REALTIME\b|\bstd::time\(",
        {
            "csrc/core/trace/timeline*": "traces of several hosts are laid over each other",
            "csrc/core/base/clock.h": "a worker that nobody counts grows from start to start",
        },
    ),
    (
        "a cryptographic primitive",
        r"<openssl/",
        {
            "csrc/core/base/secret.cc": "few lines touch keys, and they stand together",
            "csrc/core/wire/tls.cc": "OpenSSL's TLS, and no other primitive",
        },
    ),
    (
        "state of the process",
        r"(?m)\bstatic (auto|[\w:]+) ?[&*]? ?(const )?\w+ = \*?new\b|^thread_local\b"
        r"|^(constinit )?(std::atomic<.*?>|Mutex|\w+::Mutex) [\w:]+ ?[;{=]",
        {
            "csrc/ciranda/torch/process/*": "the World or connection, handles, row tables, puller",
            "csrc/ciranda/torch/collective/arena_tensors.cc": "tensors in the arena",
            "csrc/ciranda/torch/gradient/gradient_owners.cc": "the reducer of each parameter",
            "csrc/ciranda/torch/gradient/gradient_place.cc": "torch has one allocator for the CPU",
            "csrc/ciranda/torch/gradient/gradient_reducer.cc": "the end of a backward pass",
            "csrc/ciranda/torch/gradient/rank_graph.cc": "a counter",
            "csrc/ciranda/torch/step/shared_step.cc": "a function of the bindings",
            "csrc/bindings/world_py.cc": "a counter",
            "csrc/core/transport/local/shared_mapping.cc": "what a fork handler walks through",
            "csrc/core/base/yield_point.cc": "a test's",
        },
    ),
    ("a shell", r"(?<![\w.>])(std::|::)?(system|popen)\s*\(", {}),
    ("an address that everybody reaches", r"\bINADDR_ANY\b|\bin6addr_any\b|\"0\.0\.0\.0\"", {}),
    (
        "an exception in core",
        r"\bthrow\b",
        {
            "csrc/ciranda/torch/*": "torch's way",
            "csrc/bindings/*": "Python's",
            "csrc/core/job/job.cc": "the API of C++ programs, on top of everything",
            "csrc/core/backend/gloo/gloo_group.cc": "ends collectives of Gloo; caught there",
        },
    ),
]
PYTHON_WORDS: list[tuple[str, str, dict[str, str]]] = [
    (
        "pickle",
        r"\b(cloud)?pickle\b|\btorch\.load\s*\(",
        {
            "python/ciranda/torch/*object*.py": "broadcast_object among ranks of one job, which "
            "already run the same program as the same user",
            "python/ciranda/torch/functions.py": "the same",
            "python/ciranda/torch/checkpoints/content.py": "writes what torch.load() reads",
            "python/ciranda/torch/checkpoints/reader.py": "reads values only, by weights_only=True",
            "python/ciranda/launch/function.py": "ciranda.run(): a function and its results, in "
            "files that only this user can write, and through his ssh",
        },
    ),
    ("eval or exec", r"(?<![\w.])(eval|exec)\s*\(", {}),
    ("a shell", r"\bos\.(system|popen)\b|\bshell\s*=\s*True\b", {}),
    ("an address that everybody reaches", r"[\"']0\.0\.0\.0[\"']|[\"']::[\"']", {}),
    (
        "wall-clock time",  # it may jump, so nothing is decided by it
        r"\btime\.time(_ns)?\(|\bdatetime\.(now|today|utcnow)\(|\bCLOCK_REALTIME\b",
        {
            "python/ciranda/doctor/*": "compares the clocks of hosts",
            "python/ciranda/sinks.py": "TensorBoard's events have the time of day",
            "python/ciranda/torch/failure_report.py": "torchelastic's error files have it",
        },
    ),
]
# A core .cc whose tests are elsewhere: path -> where.
TESTED_ELSEWHERE: dict[str, str] = {
    # Parts of a server.
    "csrc/core/ps/io/server_answers.cc": "tests/cpp/ps/io/server_test.cc",
    # One test runs every instruction set that the machine has.
    "csrc/core/kernels/reduce_avx2.cc": "tests/cpp/kernels/reduce_test.cc",
    "csrc/core/kernels/reduce_avx512.cc": "tests/cpp/kernels/reduce_test.cc",
    "csrc/core/kernels/reduce_portable.cc": "tests/cpp/kernels/reduce_test.cc",
    "csrc/core/kernels/variants_portable.cc": "tests/cpp/kernels/reduce_test.cc",
    "csrc/core/kernels/variants_x86.cc": "tests/cpp/kernels/reduce_test.cc",
    # Parts of read_config(), which tests call with the environment of a whole process.
    "csrc/core/settings/environment.cc": "tests/cpp/settings/config_test.cc",
    "csrc/core/settings/operations_config.cc": "tests/cpp/settings/config_test.cc",
    "csrc/core/settings/remote_config.cc": "tests/cpp/settings/config_test.cc",
    "csrc/core/settings/starter.cc": "tests/cpp/settings/config_test.cc",
    # They mean something only together, with ranks that run.
    "csrc/core/backend/gloo/gloo_group.cc": "tests/cpp/backend/gloo/gloo_backend_test.cc",
    "csrc/core/backend/nccl/nccl_communicator.cc": "tests/cpp/backend/nccl/nccl_backend_test.cc",
    "csrc/core/backend/nccl/nccl_facts.cc": "tests/cpp/backend/nccl/nccl_api_test.cc",
    "csrc/core/backend/ring/ring_exchange.cc": "tests/cpp/backend/ring/ring_backend_test.cc",
    "csrc/core/backend/ring/ring_operation.cc": "tests/cpp/backend/ring/ring_backend_test.cc",
    "csrc/core/backend/shm/shm_backend.cc": "tests/cpp/engine/engine_test.cc",
    "csrc/core/backend/gloo/no_gloo.cc": "tests/cpp/stand_ins/stand_ins_test.cc",
    "csrc/core/backend/nccl/no_nccl.cc": "tests/cpp/stand_ins/stand_ins_test.cc",
    "csrc/core/base/yield_point.cc": "tests/cpp/engine/seat_test.cc",
    "csrc/core/engine/background_thread.cc": "tests/cpp/engine/seat_test.cc",
    "csrc/core/engine/cycle.cc": "tests/cpp/engine/engine_test.cc",
    "csrc/core/engine/dispatcher.cc": "tests/cpp/engine/engine_test.cc",
    "csrc/core/engine/run/execution.cc": "tests/cpp/engine/engine_test.cc",
    "csrc/core/engine/frame_exchange.cc": "tests/cpp/engine/hosts_test.cc",
    "csrc/core/engine/run/group_backends.cc": "tests/cpp/engine/groups_test.cc",
    "csrc/core/engine/peer_watch.cc": "tests/cpp/engine/hosts_test.cc",
    "csrc/core/engine/tensor_table.cc": "tests/cpp/engine/engine_test.cc",
    "csrc/core/transport/join/meeting.cc": "tests/cpp/transport/join/remote_mesh_test.cc",
    "csrc/core/transport/local/peer_bells.cc": "tests/cpp/engine/engine_test.cc",
}

# Modules that are not called like their package.
MODULE_OF = {"PyYAML": "yaml", "nvidia_ml_py": "pynvml"}
# Looked for and used where it is, but nobody needs it.
NOT_DECLARED = {
    "fsspec": "torch's own dependency; Checkpoints says how to get it where it is missing",
    "horovod": "`ciranda compare` measures it where somebody has built it",
    "mlflow": "--log writes to it where the user has chosen it",
    "torchvision": "its sets of images, where they are on this machine",
    "wandb": "as mlflow",
}

CORE_LINES_MAX = 500  # look again at a longer one; .clang-tidy bounds functions
# Longer ones, and why.
LONGER_CORE_FILES: dict[str, str] = {}

Rule = Callable[[Tree], list[str]]
RULES: list[Rule] = []


def rule(function: Rule) -> Rule:
    RULES.append(function)
    return function


def layer_of(path: str) -> str | None:
    """The deepest folder of the table: `core/backend/shm/x.h` -> `core/backend`, `ciranda/x.h` ->
    `include`; None for what is not ours."""
    folder = path.rpartition("/")[0]
    if folder == "ciranda":
        return "include"
    while folder and folder not in MAY_INCLUDE:
        folder = folder.rpartition("/")[0]
    return folder or None


@rule
def includes_point_downwards(tree: Tree) -> list[str]:
    bad = []
    ours = set(tree.paths)
    for path in tree.under("csrc/", CPP):
        layer = layer_of(path.removeprefix("csrc/"))
        if layer is None:
            bad.append(f"{path}: not in a layer that tests/tidy/rules.py knows")
            continue
        for line, included in tree.includes(path):
            is_ours = f"csrc/{included}" in ours or f"csrc/include/{included}" in ours
            is_ours = is_ours or included.startswith("core/")
            target = layer_of(included) if is_ours else None
            if target and target != layer and target not in MAY_INCLUDE[layer]:
                bad.append(f"{path}:{line}: {layer} must not include {included}")
    return bad


@rule
def pure_folders_touch_nothing_outside(tree: Tree) -> list[str]:
    where = [f"{folder}/" for folder in PURE_FOLDERS] + [f"{file}." for file in PURE_FILES]
    return [
        f"{path}:{line}: {prefix[:-1]} decides in pure code and must not include {included}"
        for prefix in where
        for path in tree.under(f"csrc/{prefix}", CPP)
        for line, included in tree.includes(path)
        if IMPURE_HEADERS.match(included) and (prefix[:-1], included) not in IMPURE_ALLOWED
    ]


@rule
def torch_stays_out_of_core(tree: Tree) -> list[str]:
    ours = set(tree.paths)
    return [
        f"{path}:{line}: only the torch layer, its headers and csrc/bindings include {included}"
        for path in tree.under("csrc/", CPP)
        if not path.startswith(
            (
                "csrc/ciranda/torch/",
                "csrc/bindings/",
                "csrc/include/ciranda/torch",
                "csrc/include/ciranda/elastic",
            )
        )
        for line, included in tree.includes(path)
        if TORCH_HEADERS.match(included) and f"csrc/{included}" not in ours
    ]


@rule
def words_stay_in_their_files(tree: Tree) -> list[str]:
    bad = []
    for prefix, suffixes, table in (
        ("csrc/", CPP, CPP_WORDS),
        ("python/", {".py"}, PYTHON_WORDS),
    ):
        for what, pattern, allowed in table:
            paths = [
                path
                for path in tree.under(prefix, suffixes)
                if not any(fnmatch(path, glob) for glob in allowed)
            ]
            bad += [
                f"{path}:{line}: {what} ({text}) belongs in {', '.join(allowed) or 'no file'}"
                for path, line, text in tree.matches(pattern, paths)
            ]
    return bad


@rule
def nothing_is_left_for_now(tree: Tree) -> list[str]:
    mark = "TODO" + "(now)"
    return [
        f"{path}:{line_of(tree.text(path), tree.text(path).index(mark))}: {mark} must not merge"
        for path in tree.under("", TEXT)
        if not path.startswith("tests/tidy/")
        and path != "CONTRIBUTING.md"
        and mark in tree.text(path)
    ]


@rule
def every_core_file_has_a_test(tree: Tree) -> list[str]:
    paths = set(tree.paths)
    bad = []
    for path in tree.under("csrc/core/", {".cc"}):
        test = path.replace("csrc/core/", "tests/cpp/").removesuffix(".cc") + "_test.cc"
        elsewhere = TESTED_ELSEWHERE.get(path)
        if test not in paths and elsewhere is None:
            bad.append(f"{path}: no {test}")
        elif elsewhere is not None and elsewhere not in paths:
            bad.append(f"{path}: TESTED_ELSEWHERE names {elsewhere}, which does not exist")
    return bad


@rule
def core_files_stay_short(tree: Tree) -> list[str]:
    lines = {path: tree.text(path).count("\n") for path in tree.under("csrc/core/", CPP)}
    bad = [
        f"{path}: {count} lines, at most {CORE_LINES_MAX}: which decision can have its own file?"
        for path, count in lines.items()
        if count > CORE_LINES_MAX and path not in LONGER_CORE_FILES
    ]
    return bad + [
        f"{path}: is short enough; LONGER_CORE_FILES needs it no more"
        for path in LONGER_CORE_FILES
        if path in lines and lines[path] <= CORE_LINES_MAX
    ]


@rule
def no_file_is_dead(tree: Tree) -> list[str]:
    bad = []
    compiled = re.compile(
        r"^(csrc/(core|ciranda/torch)/.*|csrc/(bindings(/launcher)?|bin)/[^/]+|tests/cpp/([^/]+/.*|precompiled)|tests/fuzz/[^/]+"
        r"|benchmarks/cpp/[^/]+_bench|tests/python/libtorch/.*|examples/.*)\.(cc|cpp)$"
    )
    bad += [
        f"{path}: CMakeLists.txt compiles no such place"
        for path in tree.under("", {".cc", ".cpp"})
        if not compiled.match(path)
    ]
    sources = tree.under("", CPP)
    included = {(path, name) for path in sources for _, name in tree.includes(path)}
    for path in tree.under("", {".h"}):
        if path.startswith("csrc/include/"):
            continue  # for users
        names = {path.split("/", depth)[depth] for depth in range(path.count("/") + 1)}
        if not any(name in names for by, name in included if by != path):
            bad.append(f"{path}: nothing includes it")
    return bad


@rule
def links_in_the_docs_resolve(tree: Tree) -> list[str]:
    bad = []
    for path in tree.under("", {".md"}):
        text = tree.text(path)
        prose = re.sub(r"(?s)```.*?```|`[^`\n]*`", lambda m: "\n" * m[0].count("\n"), text)
        for match in re.finditer(r"\]\(\s*<?([^)\s>]+)>?[^)]*\)|^\[[^\]]+\]:\s*(\S+)", prose, re.M):
            link = match[1] or match[2]
            if re.match(r"[a-z]+:|#", link):
                continue
            target = (tree.root / path).parent / link.split("#")[0]
            if not target.exists():
                bad.append(f"{path}:{line_of(prose, match.start())}: no such file: {link}")
            elif "#" in link and target.suffix == ".md" and not _has_anchor(target, link):
                bad.append(f"{path}:{line_of(prose, match.start())}: no such heading: {link}")
    return bad


def _has_anchor(page: Path, link: str) -> bool:
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"(?m)^#+\s+(.+?)\s*$", text)
    anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
    anchors |= set(re.findall(r"""(?:id|name)=["']([^"']+)["']""", text))
    anchors |= set(re.findall(r"(?m)^\(([\w-]+)\)=\s*$", text))
    return link.split("#")[1] in anchors


@rule
def tests_that_the_docs_name_exist(tree: Tree) -> list[str]:
    """`tests/…/test_a.py::test_b`, `tests/cpp/…_test.cc::Suite.Name`"""
    bad = []
    for path in tree.under("", {".md"}):
        text = tree.text(path)
        for match in re.finditer(r"((?:tests|benchmarks)/[\w/]+\.(?:py|cc))::([\w.]+)", text):
            file = tree.root / match[1]
            name = match[2].rpartition(".")[2]
            if not file.exists() or not re.search(rf"\b{name}\b", file.read_text("utf-8")):
                bad.append(f"{path}:{line_of(text, match.start())}: no such test: {match[0]}")
    return bad


@rule
def files_that_the_docs_name_exist(tree: Tree) -> list[str]:
    """`csrc/bin/ciranda_ps.cc`, or without its ending; decisions speak of the tree of their day."""
    bad = []
    for path in tree.under("", {".md"}):
        if path.startswith("docs/decisions/") or path == "CHANGELOG.md":
            continue
        text = tree.text(path)
        for match in re.finditer(r"`((?:csrc|python/ciranda|tests|tools)/[\w/.-]+)`", text):
            file = tree.root / match[1].rstrip("/")
            if "NAME" in match[1]:
                continue  # a new one's, in a page that says how to add it
            if not file.exists() and not any(file.parent.glob(file.name + ".*")):
                bad.append(f"{path}:{line_of(text, match.start())}: no such file: {match[1]}")
    return bad


@rule
def presets_run_the_tests_that_they_build(tree: Tree) -> list[str]:
    """A filter by labels leaves out, without a word, the tests of a folder that was renamed."""
    if "CMakePresets.json" not in tree.paths:
        return []
    presets = json.loads(tree.text("CMakePresets.json"))
    labels = {
        preset["configurePreset"]: preset.get("filter", {}).get("include", {}).get("label", "")
        for preset in presets["testPresets"]
        if "configurePreset" in preset
    }
    return [
        f"CMakePresets.json: {preset['name']} builds {target} and does not run them"
        for preset in presets["buildPresets"]
        for target in preset.get("targets", [])
        if not re.search(labels[preset["configurePreset"]], target.removesuffix("_tests"))
    ]


@rule
def nothing_names_this_machine(tree: Tree) -> list[str]:
    pattern = re.compile(r"(?<![\w.}$/])/(?:work|root|home|Users)/[\w.]+|--(?:extra-)?index-url")
    return [
        f"{path}:{line_of(tree.text(path), match.start())}: names one machine: {match[0]}"
        for path in tree.under("", TEXT)
        if not path.startswith("tests/tidy/")
        for match in pattern.finditer(tree.text(path))
    ]


@rule
def python_imports_are_declared(tree: Tree) -> list[str]:
    """A third-party module that the package imports is a dependency in pyproject.toml, or in the
    file that it takes them from."""
    if "pyproject.toml" not in tree.paths:
        return []
    project = tomllib.loads(tree.text("pyproject.toml"))["project"]
    names = [name for group in project["optional-dependencies"].values() for name in group]
    if "dependencies" in project.get("dynamic", []):
        names += re.findall(r'"([\w-]+)[=>]=', tree.text("tools/wheel_requirements.py"))
    else:
        names += project["dependencies"]
    declared = {re.split(r"[^\w-]", name)[0].replace("-", "_") for name in names}
    declared |= {module for package, module in MODULE_OF.items() if package in declared}
    known = declared | set(sys.stdlib_module_names) | {"ciranda", *NOT_DECLARED}
    return [
        f"{path}:{line}: imports {module}, which pyproject.toml does not declare"
        for path in tree.under("python/", {".py"})
        for line, module in _imports(tree, path)
        if module not in known
    ]


@rule
def the_launcher_starts_without_torch(tree: Tree) -> list[str]:
    light = [*tree.under("python/ciranda/launch/", {".py"}), "python/ciranda/__init__.py"]
    return [
        f"{path}:{line}: imports torch, and `ciranda --help` must not wait for it"
        for path in light
        if path in tree.paths
        for line, module in _imports(tree, path)
        if module == "torch"
    ]


def _imports(tree: Tree, path: str) -> list[tuple[int, str]]:
    """(line, top-level module) of every absolute import."""
    found = []
    for node in ast.walk(ast.parse(tree.text(path))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name.split(".")[0]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.append((node.lineno, node.module.split(".")[0]))
    return found
