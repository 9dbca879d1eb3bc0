"""The architecture holds, and each rule is seen to fail on a planted violation."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import rules
from tree import CPP, Tree

PROJECT = Tree(Path(__file__).parents[2])

PYPROJECT = '[project]\nname = "x"\ndependencies = ["torch>=2"]\noptional-dependencies = {}\n'

PRESETS = """{
  "buildPresets": [
    {"name": "tsan", "configurePreset": "tsan", "targets": ["backend_tests", "engine_tests"]}
  ],
  "testPresets": [
    {"name": "tsan", "configurePreset": "tsan", "filter": {"include": {"label": "^(backend|run)$"}}}
  ]
}"""

# rule, {path: text} that breaks it, what the message must contain
PLANTS = [
    (
        rules.includes_point_downwards,
        {"csrc/core/wire/a.h": '#include "core/engine/engine.h"'},
        "wire/a.h:1: core/wire must not include core/engine/engine.h",
    ),
    (
        rules.includes_point_downwards,
        {"csrc/core/negotiate/a.cc": '\n#include "core/plan/fusion.h"'},
        "a.cc:2: core/negotiate must not include",
    ),
    (
        rules.includes_point_downwards,
        {
            "csrc/core/kernels/a.cc": '#include "core/backend/shm/x.h"',
            "csrc/core/backend/shm/x.h": "",
        },
        "core/kernels must not include core/backend/shm/x.h",
    ),
    (
        rules.includes_point_downwards,
        {
            "csrc/core/engine/a.cc": '#include "ciranda/torch/tensor/hooks.h"',
            "csrc/ciranda/torch/tensor/hooks.h": "",
        },
        "core/engine must not include ciranda/torch/tensor/hooks.h",
    ),
    (
        rules.includes_point_downwards,
        {"csrc/include/ciranda/core.h": '#include "core/base/result.h"'},
        "include must not include core/base/result.h",
    ),
    (rules.includes_point_downwards, {"csrc/extra/a.cc": ""}, "not in a layer"),
    *(
        (
            rules.pure_folders_touch_nothing_outside,
            {f"csrc/core/{file}.cc": f"#include <{header}>"},
            f"must not include {header}",
        )
        for file, header in [
            ("wire/a", "sys/socket.h"),
            ("negotiate/a", "thread"),
            ("negotiate/a", "chrono"),
            ("plan/a", "core/base/clock.h"),
            ("kernels/a", "mutex"),
            ("engine/run/joined", "chrono"),
        ]
    ),
    (
        rules.torch_stays_out_of_core,
        {"csrc/core/base/a.h": "#include <torch/torch.h>"},
        "base/a.h:1: only the torch layer",
    ),
    (
        rules.torch_stays_out_of_core,
        {"csrc/include/ciranda/core.h": "#include <ATen/ATen.h>"},
        "ATen",
    ),
    *(
        (rules.words_stay_in_their_files, {path: text}, what)
        for path, text, what in [
            ("csrc/core/base/a.cc", "auto x = std::getenv(name);", "getenv"),
            ("csrc/ciranda/torch/tensor/a.cc", "auto x = getenv(name);", "getenv"),
            (
                "csrc/core/engine/a.cc",
                "void f() __attribute__((no_thread_safety_analysis));",
                "a way around",
            ),
            ("csrc/core/wire/a.cc", "#include <openssl/hmac.h>", "a cryptographic primitive"),
            ("csrc/core/backend/a.cc", "std::thread t(run);", "a thread"),
            ("csrc/core/backend/a.cc", "std::jthread t(run);", "a thread"),
            ("csrc/core/engine/a.h", "std::mutex m_;", "a mutex"),
            ("csrc/core/engine/a.h", "std::lock_guard lock(m_);", "a mutex"),
            ("csrc/core/engine/a.cc", "std::chrono::system_clock::now();", "wall-clock"),
            ("csrc/core/engine/a.cc", 'std::system("ls");', "a shell"),
            ("csrc/core/engine/a.cc", "static Names& all = *new Names;", "state of the process"),
            ("csrc/core/engine/a.cc", "\nMutex mutex;", "state of the process"),
            ("csrc/core/transport/a.cc", "addr.s_addr = INADDR_ANY;", "everybody"),
            ("csrc/core/base/a.cc", 'throw std::logic_error("x");', "exception"),
            ("python/ciranda/launch/a.py", "import pickle", "pickle"),
            ("python/ciranda/a.py", "from cloudpickle import dumps", "pickle"),
            ("python/ciranda/a.py", "state = torch.load(path)", "pickle"),
            ("python/ciranda/a.py", "eval(text)", "eval"),
            ("python/ciranda/a.py", "subprocess.run(line, shell=True)", "a shell"),
            ("python/ciranda/a.py", "os.system(line)", "a shell"),
            ("python/ciranda/a.py", 's.bind(("0.0.0.0", 1))', "everybody"),
            ("python/ciranda/a.py", "deadline = time.time() + 5", "wall-clock"),
        ]
    ),
    (rules.nothing_is_left_for_now, {"docs/a.md": "\nTODO" + "(now): finish"}, "docs/a.md:2"),
    (rules.every_core_file_has_a_test, {"csrc/core/base/a.cc": ""}, "no tests/cpp/base/a_test.cc"),
    (rules.core_files_stay_short, {"csrc/core/base/a.h": "\n" * 501}, "a.h: 501 lines, at most"),
    (rules.no_file_is_dead, {"csrc/core/base/a.h": ""}, "nothing includes it"),
    (rules.no_file_is_dead, {"csrc/core/base/a.h": '#include "core/base/a.h"'}, "nothing includes"),
    (rules.no_file_is_dead, {"csrc/old/a.cc": ""}, "compiles no such place"),
    (rules.no_file_is_dead, {"tests/cpp/a_test.cc": ""}, "compiles no such place"),
    (
        rules.links_in_the_docs_resolve,
        {"README.md": "\n[x](docs/no.md)"},
        "README.md:2: no such file",
    ),
    (
        rules.links_in_the_docs_resolve,
        {"README.md": "[x](a.md#gone)", "a.md": "# Here"},
        "no such heading: a.md#gone",
    ),
    (
        rules.tests_that_the_docs_name_exist,
        {"docs/a.md": "`tests/test_a.py::test_gone`", "tests/test_a.py": "def test_here(): ..."},
        "docs/a.md:1: no such test: tests/test_a.py::test_gone",
    ),
    (
        rules.files_that_the_docs_name_exist,
        {"docs/a.md": "\n`csrc/ciranda/gone`"},
        "docs/a.md:2: no such file: csrc/ciranda/gone",
    ),
    (
        rules.presets_run_the_tests_that_they_build,
        {"CMakePresets.json": PRESETS},
        "tsan builds engine_tests and does not run them",
    ),
    (rules.nothing_names_this_machine, {"tools/a.sh": "cd /ho" + "me/somebody"}, "tools/a.sh:1"),
    (rules.nothing_names_this_machine, {"a.txt": "--index" + "-url x"}, "names one machine"),
    (
        rules.python_imports_are_declared,
        {"pyproject.toml": PYPROJECT, "python/ciranda/a.py": "def f():\n    import numpy.random"},
        "a.py:2: imports numpy",
    ),
    (
        rules.the_launcher_starts_without_torch,
        {"python/ciranda/launch/cli/commands.py": "def f():\n    from torch import nn"},
        "commands.py:2: imports torch",
    ),
]

# Looks like a violation, is none.
INNOCENT = {
    "pyproject.toml": PYPROJECT,
    "csrc/core/base/a.h": "// a std::mutex would throw; see /* getenv */\nint system_count(int x);",
    "csrc/core/base/long.h": '#include "core/base/a.h"\n' + "\n" * 399,
    "csrc/ciranda/torch/tensor/long.cc": '#include "core/base/long.h"\n' + "\n" * 600,
    "csrc/core/base/a.cc": '#include "core/base/a.h"\nauto s = "a // b";  // std::thread\n',
    "csrc/core/transport/dial/connection_thread.cc": (
        '#include "core/base/a.h"\nstd::thread t(run);\n'
    ),
    "csrc/include/ciranda/core.h": "#include <vector>\n",
    "csrc/ciranda/torch/tensor/a.cc": (
        "#include <torch/torch.h>\nvoid f() { throw std::this_thread::get_id(); }"
    ),
    "python/ciranda/a.py": "import torch\nmodel.eval()  # eval(x)\n",
    "tests/cpp/base/a_test.cc": "",
    "tests/cpp/base/b_test.cc": "TEST(A, Works) {}",
    "tests/cpp/transport/dial/connection_thread_test.cc": "",
    "docs/a.md": "# A\n[b](../README.md#the-start) [c](https://x.org) `[d](no.md)` [e](#a)"
    " `tests/cpp/base/b_test.cc::A.Works` `csrc/core/base/long` `tests/cpp`",
    "README.md": "## The start!\n",
}


def plant(root: Path, files: dict[str, str]) -> Tree:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return Tree(root)


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_project_obeys(rule: rules.Rule) -> None:
    violations = rule(PROJECT)
    assert not violations, "\n" + "\n".join(violations)


@pytest.mark.parametrize(("rule", "files", "message"), PLANTS)
def test_rule_sees_a_planted_violation(
    rule: rules.Rule, files: dict[str, str], message: str, tmp_path: Path
) -> None:
    violations = rule(plant(tmp_path, files))
    assert any(message in violation for violation in violations), violations


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_rule_lets_innocent_code_pass(rule: rules.Rule, tmp_path: Path) -> None:
    assert rule(plant(tmp_path, INNOCENT)) == []


def test_every_rule_has_a_planted_violation() -> None:
    assert {rule for rule, _, _ in PLANTS} == set(rules.RULES)


def test_a_core_file_that_became_short_is_no_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "csrc/core/base/a.h"
    monkeypatch.setitem(rules.LONGER_CORE_FILES, path, "it was long")
    assert rules.core_files_stay_short(plant(tmp_path / "long", {path: "\n" * 501})) == []
    (violation,) = rules.core_files_stay_short(plant(tmp_path / "short", {path: "\n" * 500}))
    assert "LONGER_CORE_FILES needs it no more" in violation


def test_sizes_are_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    """Prints what is worth a second look; only a file of core may not be longer."""
    with capsys.disabled():
        for path in PROJECT.under("", CPP | {".py"}):
            lines = PROJECT.text(path).count("\n")
            if lines > 500:
                print(f"\nlook again: {path} has {lines} lines", end="")
