"""Throws random bytes at the lists of hosts: hostfile_fuzz.py [OPTION OF LIBFUZZER]... [CORPUS]...

What must hold is in test_hostfile.py, which replays the corpus without Atheris.
"""

import sys

import atheris

atheris.enabled_hooks.add("RegEx")
atheris.enabled_hooks.add("str")
with atheris.instrument_imports(include=["ciranda.launch"]):
    from test_hostfile import read

    from ciranda.launch.plan import hosts

hosts._HOSTS_MAX = 32  # lists of thousands would take most of the time
atheris.Setup(sys.argv, read)
atheris.Fuzz()
