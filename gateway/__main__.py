"""The entry of `kvlane`, and of `python -m gateway`."""

import signal


def main() -> None:
    """Run the command line; until it handles Ctrl-C itself, Ctrl-C simply ends it, without a traceback of imports."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gateway.cli import main as run  # heavy, so not before the line above

    run()


if __name__ == "__main__":
    main()
