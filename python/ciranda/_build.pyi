# The module itself is written by CMake (cmake/_build.py.in) and exists in an installed package.
TORCH_VERSION: str
CPU_BACKENDS: tuple[str, ...]
GPU_BACKENDS: tuple[str, ...]
