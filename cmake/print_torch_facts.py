"""Prints what TorchDeps.cmake needs to know about torch, as one line of JSON."""

import json
import sys
from pathlib import Path

try:
    import torch
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")

facts = {
    "version": torch.__version__.split("+")[0],
    "root": str(Path(torch.__file__).parent),
    "cxx11_abi": str(int(torch.compiled_with_cxx11_abi())),
}
sys.stdout.write(json.dumps(facts))
