"""horovod.runner.launch: `python -m horovod.runner.launch` is horovodrun."""

from ciranda.launch.cli.commands import as_horovodrun as run_commandline

__all__ = ["run_commandline"]

if __name__ == "__main__":
    run_commandline()
