"""For `python setup.py ...`: drives the same CMake build as pyproject.toml, and adds nothing."""

import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).parent / "tools"))
from wheel_requirements import requirements

# The cmake keywords are scikit-build-core's setuptools plugin, which reads [tool.scikit-build] too.
setup(cmake_source_dir=".", cmake_install_dir="ciranda", install_requires=requirements())
