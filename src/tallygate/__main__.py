"""`python -m tallygate` is the command `tallygate`."""

from tallygate.cli import main

if __name__ == "__main__":
    main()
