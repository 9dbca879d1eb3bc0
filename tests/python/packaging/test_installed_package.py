"""What pip installed is complete, relocatable, and enough for a C++ program."""

import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ciranda

PACKAGE = Path(ciranda.__file__).parent
FILES = {str(path) for path in importlib.metadata.files("ciranda") or []}


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize(
    "name",
    [
        "ciranda/__init__.py",
        "ciranda/_build.py",
        "ciranda/_C.pyi",
        "ciranda/_member.pyi",
        "ciranda/py.typed",
        "ciranda/compat/names/horovod/torch/mpi_ops.py",
        "ciranda/include/ciranda/ciranda.h",
        "ciranda/include/ciranda/elastic.h",
        "ciranda/include/ciranda/torch.h",
        "ciranda/lib/libciranda_core.a",
        "ciranda/lib/libciranda_torch.a",
        "ciranda/lib/cmake/ciranda/cirandaConfig.cmake",
        "ciranda/lib/cmake/ciranda/cirandaConfigVersion.cmake",
        "ciranda/lib/cmake/ciranda/cirandaTargets.cmake",
        "ciranda/lib/cmake/ciranda/cirandaTorch.cmake",
        "ciranda/lib/cmake/ciranda/cirandaTorchTargets.cmake",
    ],
)
def test_wheel_holds(name: str) -> None:
    assert name in FILES


def test_wheel_holds_headers_and_each_module_once() -> None:
    assert [f for f in FILES if re.fullmatch(r"ciranda/include/ciranda/\w+\.h", f)]
    modules = [f for f in FILES if re.fullmatch(r"ciranda/\w+\.cpython.*\.so", f)]
    assert {name.split(".")[0] for name in modules} == {"ciranda/_C", "ciranda/_member"}
    assert len(modules) == 2


def test_wheel_holds_nothing_that_belongs_in_the_repository() -> None:
    strangers = [f for f in FILES if not f.startswith(("ciranda/", "ciranda-", "../../../bin/"))]
    assert not strangers
    assert not [f for f in FILES if f.endswith((".cc", ".cmake.in"))]


def test_the_commands_are_installed() -> None:
    scripts = importlib.metadata.distribution("ciranda").entry_points
    assert {each.name for each in scripts} == {
        "ciranda",
        "cirandarun",
        "ciranda-ps",
        "horovodrun",
    }


def test_version_is_that_of_the_metadata() -> None:
    assert ciranda.__version__ == importlib.metadata.version("ciranda")


def test_pip_is_told_which_torch_it_was_built_for() -> None:
    minor = ".".join(importlib.metadata.version("torch").split(".")[:2])
    assert f"torch=={minor}.*" in (importlib.metadata.requires("ciranda") or [])


def test_import_loads_neither_torch_nor_compiled_code() -> None:
    code = "import sys, ciranda; print('torch' in sys.modules, 'ciranda._C' in sys.modules)"
    assert run(sys.executable, "-c", code, cwd=PACKAGE.parent).split() == ["False", "False"]


def test_the_launchers_module_needs_no_torch() -> None:
    code = "import sys, ciranda._member; print('torch' in sys.modules)"
    assert run(sys.executable, "-c", code, cwd=PACKAGE.parent).strip() == "False"


@pytest.mark.skipif(not shutil.which("readelf"), reason="needs binutils")
def test_the_launchers_module_is_linked_without_torch() -> None:
    (module,) = PACKAGE.glob("_member.*.so")
    needed = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", module, cwd=PACKAGE))
    assert needed and not [name for name in needed if re.search("torch|c10|cuda|nccl", name)]


def test_the_command_prints_where_cmake_finds_ciranda_and_torch() -> None:
    said = run(sys.executable, "-m", "ciranda", "--cmake-prefix-path", cwd=PACKAGE.parent)
    ours, torchs = said.strip().split(";")
    assert Path(ours) == PACKAGE
    assert (Path(torchs) / "lib/libtorch_cpu.so").is_file()


@pytest.mark.skipif(not shutil.which("readelf"), reason="needs binutils")
def test_module_searches_only_beside_itself() -> None:
    (module,) = PACKAGE.glob("_C.*.so")
    dynamic = run("readelf", "-d", module, cwd=PACKAGE)
    (places,) = re.findall(r"R(?:UN)?PATH.*\[(.*)\]", dynamic)
    beside = ["$ORIGIN/../torch/lib", "$ORIGIN/lib", "$ORIGIN/../nvidia/nccl/lib"]
    assert places.split(":") == beside
    needed = re.findall(r"NEEDED.*\[(.*)\]", dynamic)
    assert not [name for name in needed if "/" in name]
    assert not [name for name in needed if "cuda" in name], "one build serves machines without GPU"


@pytest.mark.skipif(not shutil.which("readelf"), reason="needs binutils")
def test_a_parameter_server_needs_neither_torch_nor_a_gpu() -> None:
    needed = re.findall(
        r"NEEDED.*\[(.*)\]", run("readelf", "-d", PACKAGE / "bin" / "ciranda-ps", cwd=PACKAGE)
    )
    assert needed and not [name for name in needed if re.search("torch|c10|cuda|nccl|python", name)]


def test_cpp_program_builds_against_the_installed_package(tmp_path: Path) -> None:
    (tmp_path / "main.cc").write_text(
        "#include <ciranda/ciranda.h>\n"
        "#include <cstdio>\n"
        "int main() {\n"
        "  ciranda::Job job;\n"
        "  float value = static_cast<float>(job.rank() + 1);\n"
        "  job.allreduce(&value, 1);\n"
        '  std::printf("rank %d sum %g\\n", job.rank(), value);\n'
        "}\n"
    )
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\n"
        "project(user LANGUAGES CXX)\n"
        "find_package(ciranda 0.1 CONFIG REQUIRED)\n"
        "add_executable(user main.cc)\n"
        "target_link_libraries(user PRIVATE ciranda::core)\n"
    )
    prefix = f"-DCMAKE_PREFIX_PATH={ciranda.cmake_prefix_path()}"
    run("cmake", "-G", "Ninja", "-B", "build", prefix, ".", cwd=tmp_path)
    run("cmake", "--build", "build", cwd=tmp_path)
    assert run(tmp_path / "build/user", cwd=tmp_path) == "rank 0 sum 1\n"
    launch = [sys.executable, "-m", "ciranda", "run", "--no-color", "-np", "2"]
    lines = run(*launch, tmp_path / "build/user", cwd=tmp_path).splitlines()
    assert sorted(lines) == ["[0] rank 0 sum 3", "[1] rank 1 sum 3"]


def test_cmake_package_names_no_path_of_the_machine_that_built_it() -> None:
    for file in (PACKAGE / "lib/cmake/ciranda").iterdir():
        assert str(Path.home()) not in file.read_text()
        assert sys.prefix not in file.read_text()
