"""`python -m ciranda run …` is `ciranda run …`."""

from ciranda.launch.cli.commands import main

if __name__ == "__main__":
    main()
