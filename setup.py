"""For `python setup.py ...`: drives the same CMake build as pyproject.toml, and adds nothing."""

from setuptools import setup

# The keywords are scikit-build-core's setuptools plugin, which reads [tool.scikit-build] too.
setup(cmake_source_dir=".", cmake_install_dir="ciranda")
